import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tools import OWN_METHOD
from torch import nn

from resitta.bench.executors import DoubtfulRuns, Executor, measure, run_jobs
from resitta.bench.loop import Progress
from resitta.bench.protocol import Protocol
from resitta.bench.record import RunRecord
from resitta.bench.runner import BenchSpec, Job
from resitta.data.datasets import ArrayImages
from resitta.errors import BadData, BadSetting, WorkerLost
from resitta.method import create
from resitta.models.user_code import load_method

SOURCE, TENT = Job(method=create("source"), seed=1), Job(method=create("tent"), seed=1)


@pytest.fixture
def spec(model: nn.Module, tmp_path: Path) -> BenchSpec:
    rng = np.random.default_rng(0)
    images = ArrayImages(rng.integers(0, 256, (30, 10, 10, 3), np.uint8), np.arange(30) % 5)
    return BenchSpec(protocol=Protocol(corruptions=("clean",)), model=model, data=images, out=tmp_path / "out")


def test_what_is_finished_is_kept_and_says_so(spec: BenchSpec) -> None:
    first = run_jobs(spec, [SOURCE])
    both = run_jobs(spec, [SOURCE, TENT])
    assert (first.kept, both.kept) == ((False,), (True, False))
    assert both[0] == first[0]
    assert both[0].made == first[0].made != ""
    assert run_jobs(spec, [SOURCE, TENT], rerun=True).kept == (False, False)
    assert len(list(spec.out.glob("*.json"))) == 2


def test_a_job_asked_for_twice_is_one_run(spec: BenchSpec) -> None:
    assert len(run_jobs(spec, [SOURCE, SOURCE])) == 1, "else it would count as two seeds"


def test_bars_are_made_for_what_is_run(spec: BenchSpec) -> None:
    titles: list[str] = []

    def bar(title: str) -> Any:
        titles.append(title)
        return lambda done, total: None

    run_jobs(spec, [SOURCE], bar)
    run_jobs(spec, [SOURCE, TENT], bar)
    assert titles == ["opening the data", "source, seed 1", "opening the data", "tent, seed 1"]


def test_random_weights_are_warned_of_before_the_runs(spec: BenchSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    images = ArrayImages(np.zeros((10, 32, 32, 3), np.uint8), np.arange(10))
    untrained = replace(spec, model="wrn16x1", data=images)
    with pytest.warns(DoubtfulRuns, match="wrn16x1 has random weights; give it a checkpoint"):
        records = run_jobs(untrained, [SOURCE])
    assert "random weights" in records.warning
    assert records[0].identity["untrained"] is True
    monkeypatch.setattr("resitta.bench.runner.run_stream", lambda *_, **__: pytest.fail("ran before the warning"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtfulRuns)
        with pytest.raises(DoubtfulRuns):
            run_jobs(untrained, [SOURCE], rerun=True)


Measured = Callable[[Sequence[RunRecord]], list[dict[str, object]]]


def no_bar(title: str) -> Progress:
    return lambda done, total: None


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_processes_leave_the_same_records(sweep: BenchSpec, jobs: list[Job], measured: Measured) -> None:
    some = jobs[::3]
    expected = run_jobs(replace(sweep, out=Path("local")), some, no_bar)
    seen: list[tuple[int, int]] = []
    found = run_jobs(
        sweep, some, lambda _: lambda done, total: seen.append((done, total)), Executor(name="processes", workers=2)
    )
    assert measured(found) == measured(expected)
    assert seen[-5:] == [(done, 4) for done in range(5)]
    assert {path.name for path in Path("out").glob("*.json")} == {path.name for path in Path("local").glob("*.json")}


def test_finished_runs_start_no_process(sweep: BenchSpec, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    some = jobs[:2]
    first = run_jobs(sweep, some, no_bar)
    monkeypatch.setattr(Executor, "results", lambda *_, **__: pytest.fail("ran again"))
    assert run_jobs(sweep, some, no_bar, Executor(name="processes")) == first


def test_a_record_from_another_disk_is_written_here(
    sweep: BenchSpec, jobs: list[Job], measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = some = jobs[:1]
    elsewhere = measure(replace(sweep, out=Path("elsewhere")), job)
    monkeypatch.setattr(Executor, "results", lambda *_, **__: iter([(job, elsewhere)]))
    (found,) = run_jobs(sweep, some, no_bar, Executor(name="ray"))
    assert measured([found]) == measured(run_jobs(replace(sweep, out=Path("local")), some, no_bar))


class Deadly(Job):
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (9,)


@pytest.mark.slow
def test_a_worker_that_dies_is_named(sweep: BenchSpec) -> None:
    engine = Executor(name="processes", workers=1)
    with pytest.raises(WorkerLost, match="a worker process died, perhaps out of memory; use fewer workers"):
        run_jobs(sweep, [Deadly(method=create("source"), seed=1)], no_bar, engine)


def test_a_folder_that_is_not_shared_is_named(sweep: BenchSpec, jobs: list[Job]) -> None:
    with pytest.raises(BadData, match="/nowhere does not exist on this machine; put it and the data on a shared"):
        measure(replace(sweep, folder=Path("/nowhere")), jobs[0])


@pytest.mark.parametrize(("options", "words"), [({"name": "dask"}, "name must be one of"), ({"workers": 0}, ">= 1")])
def test_wrong_engines_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        Executor(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_method_of_a_users_file_runs_in_processes(sweep: BenchSpec, measured: Measured) -> None:
    Path("own.py").write_text(OWN_METHOD.replace("FACTOR", "-1"))
    jobs = [Job(method=create(load_method("own.py:mine")), seed=seed) for seed in (1, 2)]
    expected = run_jobs(replace(sweep, out=Path("local")), jobs)
    found = run_jobs(sweep, jobs, executor=Executor(name="processes", workers=1))
    assert measured(found) == measured(expected)
    again = run_jobs(sweep, jobs, executor=Executor(name="processes", workers=1), rerun=True)
    assert measured(again) == measured(expected)
    assert again.kept == (False, False)


def test_a_worker_runs_again_only_what_it_is_told_to(sweep: BenchSpec, jobs: list[Job]) -> None:
    path = sweep.open().path(jobs[0])
    measure(sweep, jobs[0])
    stamp = path.stat().st_mtime_ns
    measure(sweep, jobs[0])
    assert path.stat().st_mtime_ns == stamp
    measure(sweep, jobs[0], rerun=True)
    assert path.stat().st_mtime_ns > stamp


@pytest.mark.slow
def test_a_model_that_differs_in_the_worker_is_refused(sweep: BenchSpec, jobs: list[Job]) -> None:
    Path("mine.py").write_text(
        "import os, torch\nfrom resitta.conformance import tiny_network\ndef make():\n"
        "    torch.manual_seed(os.getpid())\n    net = tiny_network(classes=4)\n"
        "    torch.nn.init.normal_(net[0].weight)\n    return net"
    )
    with pytest.raises(BadData, match="source, seed 1 is not the requested run: its weights was not the same"):
        run_jobs(sweep, jobs[:1], executor=Executor(name="processes", workers=1))
