import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from resitta.bench.bench import Bench, Job, weights_digest
from resitta.bench.protocol import Protocol
from resitta.registry import create
from resitta.streams.datasets import ArrayImages


@pytest.fixture
def bench(model: nn.Module, tmp_path: Path) -> Bench:
    protocol = Protocol(corruptions=("fog", "snow"))
    rng = np.random.default_rng(0)
    sets = {
        domain: ArrayImages(rng.integers(0, 256, (100, 3, 10, 10), np.uint8), np.arange(100) % 5)
        for domain in protocol.domains()
    }
    return Bench(protocol, model, dict(sets), tmp_path, torch.device("cpu"), {"model": "small"})


def test_a_finished_run_is_never_run_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(method=create(name), seed=seed) for name in ("source", "resitta") for seed in (1, 2)]
    first = bench.records(jobs)
    assert len(list(bench.out.glob("*.json"))) == 4
    monkeypatch.setattr("resitta.bench.bench.run_stream", lambda *_, **__: pytest.fail("ran again"))
    assert bench.records(jobs) == first
    assert [record.seed for record in first] == [1, 2, 1, 2]


def test_whatever_defines_a_run_changes_its_file(bench: Bench, model: nn.Module) -> None:
    job = Job(method=create("resitta"), seed=1)
    paths = {
        bench.path(job),
        bench.path(Job(method=create("resitta"), seed=2)),
        bench.path(Job(method=create("resitta", eta=0.02), seed=1)),
        Bench(Protocol(corruptions=("fog",)), bench.model, bench.sets, bench.out, bench.device, bench.about).path(job),
        Bench(bench.protocol, bench.model, bench.sets, bench.out, bench.device, {"model": "other"}).path(job),
    }
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    paths.add(bench.path(job))
    assert len(paths) == 6


def test_the_title_names_what_was_changed() -> None:
    assert Job(method=create("resitta", eta=0.05), seed=3).title == "resitta, eta=0.05, seed 3"
    assert Job(method=create("tent"), seed=1).title == "tent, seed 1"


def test_the_digest_sees_every_weight(model: nn.Module) -> None:
    before = weights_digest(model)
    assert weights_digest(model) == before
    with torch.no_grad():
        list(model.parameters())[-1][0] += 1
    assert weights_digest(model) != before


SCRIPT = """
import sys, torch, numpy as np
from pathlib import Path
torch.set_num_threads(1)
from resitta.bench.bench import Bench, Job
from resitta.bench.protocol import Protocol
from resitta.checks import tiny_network
from resitta.registry import create
from resitta.streams.datasets import ArrayImages
protocol = Protocol(corruptions=("fog", "snow"))
rng = np.random.default_rng(0)
labels = np.arange(1500) % 5
sets = {d: ArrayImages(rng.integers(0, 256, (1500, 3, 16, 16), np.uint8), labels) for d in protocol.domains()}
bench = Bench(protocol, tiny_network(), sets, Path(sys.argv[1]), torch.device("cpu"), {})
jobs = [Job(method=create(name), seed=seed) for name in ("source", "resitta", "rotta") for seed in (1, 2)]
for record in bench.records(jobs):
    print(record.method, record.seed, record.errors, flush=True)
"""


def test_a_killed_bench_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def start(out: Path) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], stdout=subprocess.PIPE, text=True)

    whole, _ = start(tmp_path / "whole").communicate()
    victim = start(tmp_path / "killed")
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "killed").glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("*.json")}
    assert 2 <= len(finished) < 6, "killed in the middle"
    resumed, _ = start(tmp_path / "killed").communicate()
    assert resumed == whole
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in finished.items()), "nothing finished was run again"
