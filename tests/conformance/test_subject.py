import math

import pytest
import torch
from torch import Tensor

from resitta import adapt
from resitta.conformance.subject import Norm, spread_images, spread_network, tiny_network
from resitta.monitor.guard.ood_filter import unknown
from resitta.training.entropy import entropy


def certainties(channels: int, method: str, norm: Norm = "batch_norm") -> tuple[Tensor, Tensor]:
    """The entropies of the suite's images as parts of ln C, and how often each class is predicted."""
    adapter = adapt(spread_network(channels, norm=norm), method)
    logits = torch.cat([adapter(batch) for batch in torch.split(spread_images(400, (channels, 16, 16)), 50)])
    return entropy(logits) / math.log(5), torch.bincount(logits.argmax(1), minlength=5)


@pytest.mark.parametrize(
    ("norm", "method"),
    [("batch_norm", "source"), ("batch_norm", "bn"), ("layer_norm", "source"), ("group_norm", "source")],
)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_network_is_certain_of_some_images_and_uncertain_of_others(channels: int, norm: Norm, method: str) -> None:
    entropies, counts = certainties(channels, method, norm)
    assert entropies.min() < 0.05
    assert entropies.max() > 0.7
    assert (entropies < 0.4).float().mean() > 0.15, "a usual filter keeps some"
    assert (entropies > 0.4).float().mean() > 0.2, "and leaves some out"
    assert (counts > 0).sum() >= 3, "and they are not all of one class"


@pytest.mark.parametrize("method", ["source", "bn"])
def test_with_three_channels_the_entropies_reach_from_end_to_end(method: str) -> None:
    entropies, counts = certainties(3, method)
    assert entropies.max() > 0.9
    assert bool((counts > 0).all())


def test_networks_and_images_are_the_same_every_time_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    for make in (tiny_network, spread_network):
        one, other = make().state_dict(), make().state_dict()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert torch.equal(spread_images(5), spread_images(5))
    assert torch.equal(torch.get_rng_state(), before)


def test_images_lie_in_the_unit_interval() -> None:
    low, high = spread_images(400).aminmax()
    assert 0 <= low < 0.1
    assert 0.9 < high <= 1


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_guard_takes_the_images_for_pictures(channels: int) -> None:
    images = spread_images(400, (channels, 16, 16))
    refused = unknown(images, torch.eye(5)[torch.arange(400) % 5] * 9, max_entropy=0.99, min_contrast=0.002)
    assert refused.float().mean() < 0.1
