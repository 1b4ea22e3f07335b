from typing import Any

import pytest
import torch
from tests.methods.entropy_methods import LiteralETA, batches, network
from torch import Tensor

from resitta import adapt


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
