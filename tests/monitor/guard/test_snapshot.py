"""Snapshots bring everything back, for every method, and own their memory."""

import pytest
import torch
from tests.conftest import stream
from tests.tools import needed
from torch import nn

from resitta import Adapter, adapt, list_methods
from resitta.checkpoint.tree import same
from resitta.monitor.guard.snapshot import History, Snapshot
from resitta.runtime.rollback import copies


def learned(adapter: Adapter) -> dict[str, object]:
    """Everything in an adapter's state but the count of samples."""
    return {key: value for key, value in adapter.state_dict().items() if key != "_extra_state"}


@pytest.mark.parametrize("method", list_methods())
@pytest.mark.parametrize("warm", [0, 130])
def test_every_method_comes_back_exactly(model: nn.Module, method: str, warm: int) -> None:
    settings = needed(method) | {"label_prior": "none"}  # which is no part of what a learner has learned
    adapter, images = adapt(model, method, **settings), stream(330)
    if warm:
        adapter(images[:warm])
    before, snapshot = learned(adapter), Snapshot(adapter)
    first = adapter(images[warm : warm + 128])
    for _ in range(2):
        snapshot.restore(adapter)
        assert same(learned(adapter), before)
        assert torch.equal(adapter(images[warm : warm + 128]), first)


def test_shared_weights_are_not_copied(model: nn.Module) -> None:
    adapter = adapt(model, "resitta")
    frozen = next(model.parameters()).numel()
    held = [tensor.numel() for tensor in Snapshot(adapter)._tensors]
    assert frozen not in held
    assert sum(held) < 10_000


def test_copies_own_their_memory() -> None:
    original = [torch.ones(3), torch.arange(2), torch.empty(0)]
    copied = copies(original)
    original[0].zero_()
    assert [tensor.tolist() for tensor in copied] == [[1, 1, 1], [0, 1], []]
    assert [tensor.dtype for tensor in copied] == [tensor.dtype for tensor in original]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_largest_shows_what_is_not_finite(model: nn.Module, bad: float) -> None:
    adapter = adapt(model, "resitta")
    adapter(stream(64))
    assert Snapshot(adapter).largest(torch.device("cpu")).isfinite()
    next(adapter.learner.parameters()).data.view(-1)[1] = bad
    assert not Snapshot(adapter).largest(torch.device("cpu")).isfinite()


def test_history_trusts_a_state_only_after_further_updates(model: nn.Module) -> None:
    adapter = adapt(model, "tent")
    history, states = History(adapter, trust_after=20), [learned(adapter)]
    for batch in torch.split(stream(50), 10):
        adapter(batch)
        history.keep(Snapshot(adapter))
        states.append(learned(adapter))
    adapter(stream(10, seed=5))
    history.undo(adapter)
    assert same(learned(adapter), states[5])
    history.roll_back(adapter)
    assert same(learned(adapter), states[2])  # of the states 0, 2 and 4 the newest that 20 samples have followed
    history.undo(adapter)
    assert same(learned(adapter), states[2])


def test_a_rollback_drops_the_candidate_of_the_collapse(model: nn.Module) -> None:
    adapter = adapt(model, "tent")
    history, healthy = History(adapter, trust_after=20), learned(adapter)
    for batch in torch.split(stream(20), 10):
        adapter(batch)
        history.keep(Snapshot(adapter))  # the second becomes the candidate
    candidate = learned(adapter)
    history.roll_back(adapter)
    assert same(learned(adapter), healthy)
    adapter(stream(10, seed=5))  # long after the candidate, which must not be trusted for that
    history.keep(Snapshot(adapter))
    adapter(stream(20, seed=6))
    history.keep(Snapshot(adapter))
    history.roll_back(adapter)
    assert not same(learned(adapter), candidate)


def test_a_history_comes_back_with_its_parts(model: nn.Module) -> None:
    adapter = adapt(model, "tent")
    history = History(adapter, trust_after=20)
    assert len(history.state()["snapshots"]) == 1
    for batch in torch.split(stream(50), 10):
        adapter(batch)
        history.keep(Snapshot(adapter))
    again = History.of(history.state(), trust_after=20)
    assert len(again.snapshots) == 3
    for way in (History.undo, History.roll_back):
        way(history, adapter)
        expected = learned(adapter)
        adapter(stream(10, seed=5))
        way(again, adapter)
        assert same(learned(adapter), expected)
