import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.methods.entropy_methods import LiteralETA, batches, network
from torch import Tensor

from resitta import adapt, load
from resitta.errors import NotExportable


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind", ["batch", "group"])
def test_steps_by_hand(kind: str, optimizer: Any) -> None:
    literal = LiteralETA(kind, optimizer, epsilon=0.5)
    adapter = adapt(network(kind), "eta", epsilon=0.5, lr=0.01, optimizer=optimizer)
    for images in batches():
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    learned = [parameter.detach() for parameter in adapter.parameters()]
    torch.testing.assert_close(learned, [parameter.detach() for parameter in literal.trained], rtol=1e-9, atol=1e-9)
    assert min(literal.kept) < 2 < max(literal.kept) < 32
    moved = (parameter - first for parameter, first in zip(literal.trained, literal.first, strict=True))
    assert max(float(change.detach().abs().max()) for change in moved) > 1e-3


def test_nothing_happens_where_nothing_is_kept() -> None:
    adapter = adapt(network("batch"), "eta", margin=1e-6)
    before = adapter.state_dict()
    adapter(next(batches()))
    after = adapter.state_dict()
    changed = [
        name for name in before if isinstance(before[name], Tensor) and not torch.equal(before[name], after[name])
    ]
    assert changed == []


@pytest.mark.parametrize("kind", ["batch", "group"])
def test_single_images_are_learned_from(kind: str) -> None:
    literal = LiteralETA(kind, "sgd", epsilon=0.5, margin=0.98)
    adapter = adapt(network(kind), "eta", epsilon=0.5, lr=0.01, margin=0.98)
    for images in batches(24, size=1):
        torch.testing.assert_close(adapter(images), literal.step(images), rtol=1e-9, atol=1e-9)
    assert set(literal.kept) == {0, 1}


@pytest.mark.parametrize("method", ["eta", "rdumb", "sar", "deyo"])
def test_networks_without_batch_statistics_can_be_exported(method: str) -> None:
    adapter = adapt(network("group"), method, lr=0.01)
    images = next(batches())
    adapter(images)
    with adapter.paused():
        torch.testing.assert_close(adapter.export()(images), adapter(images))
    with pytest.raises(NotExportable):
        adapt(network("batch"), method).export()


@pytest.mark.parametrize("method", ["eta", "eata", "rdumb", "sar", "deyo"])
def test_a_stream_goes_on_after_it_was_saved_and_loaded(method: str, tmp_path: Path) -> None:
    source: dict[str, Any] = {"source": list(batches(32))} if method == "eata" else {}
    adapter = adapt(network("batch"), method, lr=0.01, **source)
    for images in batches(96):
        adapter(images)
    adapter.save(tmp_path / "state")
    other = load(network("batch"), tmp_path / "state")
    for images in batches(64):
        assert torch.equal(adapter(images), other(images))
    for twin in (copy.deepcopy(adapter), adapter):
        twin.reset()
        assert torch.equal(twin(images), adapt(network("batch"), method, lr=0.01, **source)(images))
