"""A sweep of twelve short runs on made-up images, for the tests of executors."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from resitta.bench import executors
from resitta.bench.protocol import Protocol
from resitta.bench.record import RunRecord
from resitta.bench.runner import BenchSpec, Job
from resitta.method import create

Measured = Callable[[Sequence[RunRecord]], list[dict[str, object]]]
MODEL = """
import torch
from resitta.conformance import tiny_network
def make():
    network, tints = tiny_network(classes=4), torch.rand(64, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # images of different tints get different predictions
        network[-1].bias -= network(tints.expand(-1, -1, 32, 32)).mean(dim=0)
    return network
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BenchSpec:
    """A model's file and a corrupted set; paths are relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    executors.opened.cache_clear()
    Path("data").mkdir()
    Path("mine.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    labels = np.arange(5 * 100) % 4
    tints = rng.integers(0, 100, (4, 1, 1, 3))[labels]
    for name in ("fog", "contrast"):
        pixels = tints + rng.integers(0, 156, (500, 1, 1, 3))
        np.save(f"data/{name}.npy", np.broadcast_to(pixels, (500, 32, 32, 3)).astype(np.uint8))
    np.save("data/labels.npy", labels)
    protocol = Protocol(corruptions=("fog", "contrast"))
    return BenchSpec(protocol=protocol, model="mine.py:make", data=Path("data"), out=Path("out"))


@pytest.fixture
def jobs() -> list[Job]:
    methods = [create(name) for name in ("source", "tent", "rotta", "resitta")]
    return [Job(method=method, seed=seed) for method in methods for seed in (1, 2, 3)]


@pytest.fixture
def measured() -> Measured:
    """Everything in records that does not depend on the machine."""
    costs = ("seconds", "device_memory_mb", "host_memory_mb", "made")
    return lambda runs: [{key: value for key, value in vars(run).items() if key not in costs} for run in runs]
