import copy
import pickle
import weakref

import pytest
import torch
from tests.accel.emulated_graphs import emulated_graphs
from torch import Tensor, nn

from resitta.accel.cuda_graphs import WARM_UP
from resitta.accel.graph_pairs import GraphPairs

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="replays need a CUDA device")


class Steps(nn.Module):
    """y = tanh(w x), then w <- w - 0.1 Σ g dy/dw; counts in `seen` how often the first half ran."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(()))

    def first(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += 1
        return torch.tanh(x * self.weight), x.sum()

    def second(self, y: Tensor, g: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(y, self.weight, g)
        with torch.no_grad():
            self.weight.sub_(0.1 * slope)
        return slope


class FailsInBackward(Steps):
    def second(self, y: Tensor, g: Tensor) -> Tensor:
        return super().second(y, g) * float(g.sum() / g.sum())


def take_steps(pairs: GraphPairs, steps: Steps, device: str = "cpu", count: int = 8) -> list[float]:
    """A stream whose tensors in between depend on the results, as they do where the host looks at these."""
    found = []
    for number in range(count):
        x = torch.linspace(-1, 1, 4, dtype=torch.float64, device=device) + number / 10
        (y, total), finish = pairs(steps.first, steps.second, x)
        assert not y.requires_grad
        torch.testing.assert_close(total, x.sum())
        found.append(float(finish(y.square() + 1)))
    return [*found, steps.weight.item(), steps.seen.item()]


def by_hand(count: int = 8) -> list[float]:
    pairs = GraphPairs()
    pairs.enabled = False
    return take_steps(pairs, Steps(), count=count)


def test_the_autograd_graph_of_a_step_ends_with_it() -> None:
    """On a CUDA device the next step could not be recorded while it lives."""
    pairs, steps, results = GraphPairs(), Steps(), []

    def first(x: Tensor) -> tuple[Tensor, Tensor]:
        y, total = steps.first(x)
        results.append(weakref.ref(y))
        return y, total

    (_, _), finish = pairs(first, steps.second, torch.ones(4, dtype=torch.float64))
    assert results[0]() is not None
    finish(torch.ones(4, dtype=torch.float64))
    assert results[0]() is None


def test_without_a_cuda_device_both_halves_are_called_as_they_are() -> None:
    pairs = GraphPairs()
    assert take_steps(pairs, Steps()) == by_hand()
    assert not pairs._calls
    assert not pairs.state_dict()


def test_recorded_steps_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, steps = GraphPairs(), Steps()
    with emulated_graphs(monkeypatch, steps):
        assert take_steps(pairs, steps) == pytest.approx(by_hand(), rel=1e-12)
    assert len(pairs._recordings) == 1


def test_a_pair_that_was_never_finished_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, steps = GraphPairs(), Steps()
    with emulated_graphs(monkeypatch, steps):
        for _ in range(WARM_UP + 3):
            pairs(steps.first, steps.second, torch.ones(4, dtype=torch.float64))
    assert not pairs._recordings


def test_shapes_beyond_the_most_are_called_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, steps = GraphPairs(most=2), Steps()
    with emulated_graphs(monkeypatch, steps):
        for size in (1, 2, 3):
            for _ in range(WARM_UP + 2):
                (y, _), finish = pairs(steps.first, steps.second, torch.ones(size, dtype=torch.float64))
                finish(y)
    assert len(pairs._recordings) == 2
    assert int(steps.seen) == 3 * (WARM_UP + 2)


def test_recordings_are_neither_copied_nor_kept_by_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, steps = GraphPairs(most=3), Steps()
    with emulated_graphs(monkeypatch, steps):
        take_steps(pairs, steps)
    for twin in (copy.deepcopy(pairs), pickle.loads(pickle.dumps(pairs))):
        assert not twin._recordings
        assert twin.most == 3
    assert pairs._recordings
    nn.ModuleList([pairs]).double()
    assert not pairs._recordings


@needs_cuda
def test_on_a_cuda_device_recorded_steps_are_the_same() -> None:
    pairs = GraphPairs()
    assert take_steps(pairs, Steps().cuda(), "cuda") == pytest.approx(by_hand(), rel=1e-12)
    assert len(pairs._recordings) == 1


@needs_cuda
def test_on_a_cuda_device_shapes_in_turns_do_not_disturb_each_other() -> None:
    runs = []
    for enabled in (True, False):
        pairs, steps, found = GraphPairs(), Steps().cuda(), []
        pairs.enabled = enabled
        for number in range(20):
            x = torch.linspace(-1, 1, 3 + number % 3, dtype=torch.float64, device="cuda") + number / 20
            (y, _), finish = pairs(steps.first, steps.second, x)
            torch.rand(1000, device="cuda")
            found.append(float(finish(y.square() + 1)))
        assert len(pairs._recordings) == (3 if enabled else 0)
        runs.append(found)
    assert runs[0] == pytest.approx(runs[1], rel=1e-12)


@needs_cuda
def test_a_second_half_that_waits_for_the_device_is_called_as_it_is() -> None:
    pairs, stream = GraphPairs(), torch.cuda.current_stream()
    assert take_steps(pairs, FailsInBackward().cuda(), "cuda") == pytest.approx(by_hand(), rel=1e-12)
    assert not pairs._recordings
    assert torch.cuda.current_stream() == stream
