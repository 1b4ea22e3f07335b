"""What all tests share: small networks, the optional testbeds."""

import copy
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.tools import Gate
from torch import Tensor, nn

from resitta import method


@pytest.fixture(autouse=True)
def registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the methods that a test registers, and the files that it runs."""
    method.list_methods()  # the built-in ones are registered, and stay
    monkeypatch.setattr("resitta.models.user_code._loaded", {})
    monkeypatch.setattr("resitta.method._methods", dict(method._methods))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let the models that tests build be the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    """Undo what the demo and the service set: later tests compare with processes that have $OMP_NUM_THREADS."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture
def model() -> nn.Module:
    """A small BatchNorm network whose running statistics are not the trivial ones."""
    return small_network()


def small_network(classes: int = 5, seed: int = 0) -> nn.Module:
    return copy.deepcopy(_small_network(classes, seed))


@cache
def _small_network(classes: int, seed: int) -> nn.Module:
    """Made once: its statistics take 15 ms, and a thousand tests ask for it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(12, classes)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            head,
        )
        for _ in range(20):
            net(torch.rand(32, 3, 10, 10) * 2 - 0.5)
        with torch.no_grad():
            head.weight.mul_(4)  # confident enough for entropies to differ
    return net.eval()


def stream(n: int, seed: int = 1, size: int = 10) -> Tensor:
    """Images whose brightness drifts, so that statistics have something to follow."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.rand(n, 3, size, size, generator=generator)
    shade = torch.linspace(0.2, 0.9, n).view(-1, 1, 1, 1)
    tint = torch.rand(n, 3, 1, 1, generator=generator)
    return (base * shade * 0.6 + tint * 0.4).clamp(0, 1)


@pytest.fixture(scope="session")
def beds() -> Path:
    """The folder of real images and source models, where there is one."""
    root = Path(os.environ.get("RESITTA_BEDS", Path(__file__).parents[2] / "shared" / "beds"))
    if not (root / "load.py").exists():
        pytest.skip("no testbeds here; set RESITTA_BEDS to measure on real images")
    return root


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A strong view that holds updates back; it is open at the end, so that no thread waits for ever."""
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in one thread, here and in processes that are started: sums in another order differ in the last bit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
