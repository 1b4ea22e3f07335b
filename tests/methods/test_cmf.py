from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.methods.roid_by_hand import HandNetwork, HandROID
from torch import Tensor, nn

from resitta import adapt, load
from resitta.methods.cmf import REFERENCE, MomentumFilter, gain
from resitta.methods.roid import ROIDLearner

Stream = Callable[[int], Tensor]


def darker(images: Tensor) -> Tensor:
    return images * 0.7


@pytest.mark.parametrize("q", [0.005, 5.0, 100.0, 900.0])
def test_steps_by_hand(precise: nn.Module, stream: Stream, q: float) -> None:
    """The small network has 40 trained parameters: its own q is 1/960 of that given."""
    adapter = adapt(precise, "cmf", strong_view=darker, lr=0.02, q=q, alpha=0.95, gamma=0.9)
    literal = HandROID(HandNetwork(precise), darker, lr=0.02, q=q, kalman=True, alpha=0.95, gamma=0.9)
    for batch in torch.split(stream(500), 48):
        torch.testing.assert_close(adapter(batch), literal(batch), rtol=1e-9, atol=1e-9)
    assert isinstance(adapter.learner, ROIDLearner)
    ensemble = adapter.learner.ensemble
    assert isinstance(ensemble, MomentumFilter)
    torch.testing.assert_close(ensemble.hidden, literal.hidden)
    assert ensemble.variance == pytest.approx(literal.variance)
    moved = [not torch.equal(h, s) for h, s in zip(literal.hidden, literal.source, strict=True)]
    assert all(moved) if q > 1 else not any(moved)  # so small a q makes the filter certain of the source


def test_the_defaults_are_those_of_its_authors(precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, "cmf", strong_view=darker)
    literal = HandROID(HandNetwork(precise), darker, kalman=True)
    for batch in torch.split(stream(96), 48):
        torch.testing.assert_close(adapter(batch), literal(batch), rtol=1e-9, atol=1e-9)


def test_the_gain_is_bounded() -> None:
    assert gain(1e-5, 0.005) == 1.0
    assert gain(1e6, 0.005) == 0.89
    assert 0.89 < gain(0.01, 0.005) < 0.9999


def test_the_filter_is_saved(precise: nn.Module, stream: Stream, tmp_path: Path) -> None:
    images = stream(160)
    adapter = adapt(precise, "cmf", lr=0.02, q=50.0)
    for batch in torch.split(images[:80], 16):
        adapter(batch)
    adapter.save(tmp_path / "state.safetensors")
    other = load(precise, tmp_path / "state.safetensors")
    for batch in torch.split(images[80:], 16):
        assert torch.equal(adapter(batch), other(batch))


def test_the_hidden_model_keeps_its_precision() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    ensemble = MomentumFilter([weight], alpha=0.99, gamma=0.5, q=0.1 * REFERENCE / 3)
    weight.data.fill_(2.0)
    ensemble.to(torch.bfloat16)([weight])
    assert {h.dtype for h in ensemble.hidden} == {torch.float32}
    assert weight.dtype == torch.bfloat16
    assert 1.5 < float(weight.detach()[0]) < 1.6


def test_nothing_to_train_is_no_trouble() -> None:
    MomentumFilter([], alpha=0.99, gamma=0.99, q=0.005)([])
