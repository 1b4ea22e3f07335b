"""A sweep of twelve short runs on made-up images, for the tests of the engines."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resitta.bench.bench import Job
from resitta.bench.protocol import Protocol
from resitta.bench.recipe import Recipe
from resitta.bench.record import RunRecord
from resitta.dist import engines
from resitta.registry import create

Measured = Callable[[list[RunRecord]], list[dict[str, object]]]
MODEL = """
from resitta.checks import tiny_network
def make():
    return tiny_network(classes=4)
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A model's file and a corrupted set; paths are relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    engines._opened.cache_clear()
    Path("data").mkdir()
    Path("mine.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for name in ("fog", "contrast"):
        np.save(f"data/{name}.npy", rng.integers(0, 256, (5 * 100, 32, 32, 3), np.uint8))
    np.save("data/labels.npy", np.arange(5 * 100) % 4)
    protocol = Protocol(corruptions=("fog", "contrast"))
    return Recipe(protocol=protocol, model="mine.py:make", data=Path("data"), out=Path("out"))


@pytest.fixture
def jobs() -> list[Job]:
    methods = [create(name) for name in ("source", "tent", "rotta", "resitta")]
    return [Job(method=method, seed=seed) for method in methods for seed in (1, 2, 3)]


@pytest.fixture
def measured() -> Measured:
    """Everything in records that does not depend on the machine."""
    costs = ("seconds", "device_memory_mb", "host_memory_mb")
    return lambda runs: [{key: value for key, value in vars(run).items() if key not in costs} for run in runs]
