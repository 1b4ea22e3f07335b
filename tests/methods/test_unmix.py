from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.roid_by_hand import HandUnMix
from torch import Tensor, nn

from resitta import adapt
from resitta.errors import NotExportable, UnsuitableModel
from resitta.method import create

Stream = Callable[[int], Tensor]


@pytest.mark.parametrize(("batch_size", "rate"), [(64, 0.1), (16, 1 - 0.9**0.25)])
def test_a_stream_by_hand(precise: nn.Module, stream: Stream, batch_size: int, rate: float) -> None:
    adapter = adapt(precise, "unmix", components=3, batch_size=batch_size, seed=2)
    literal = HandUnMix(precise, components=3, rate=rate, seed=2)
    for batch in torch.split(stream(500), 48):
        expected = literal(batch, follow=True).detach()
        torch.testing.assert_close(adapter(batch), expected, rtol=1e-9, atol=1e-9)
    assert adapter.stats.updates == 11
    assert adapter.stats.mean_drift > 0


def test_predicting_moves_nothing_and_each_sample_is_on_its_own(precise: nn.Module, stream: Stream) -> None:
    adapter, images = adapt(precise, "unmix"), stream(40)
    adapter(images)
    with adapter.paused():
        together = adapter(images)
        one_by_one = torch.cat([adapter(image) for image in torch.split(images, 1)])
    torch.testing.assert_close(one_by_one, together)
    torch.testing.assert_close(adapter(images), together)
    with adapter.paused():
        assert not torch.equal(adapter(images), together)


def test_the_seed_draws_the_components(precise: nn.Module, stream: Stream) -> None:
    images = stream(8)
    one, same, other = (adapt(precise, "unmix", seed=seed)(images) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_presets_are_those_of_its_authors() -> None:
    found: list[Any] = [create("unmix", preset=name) for name in ("cifar10", "cifar100", "imagenet")]
    assert [(m.components, m.batch_size, m.full_batch) for m in found] == [(16, 64, 64), (16, 64, 64), (16, 64, 16)]


def test_it_needs_running_statistics_and_cannot_be_exported(model: nn.Module) -> None:
    with pytest.raises(UnsuitableModel, match="running statistics"):
        adapt(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)), "unmix")
    with pytest.raises(NotExportable):
        adapt(model, "unmix").export()
