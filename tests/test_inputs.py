import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from resitta.errors import BadImages
from resitta.inputs import ROUNDING, Values, check_form
from resitta.training.network import Network

NETWORK = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
NORMALIZED = Network(nn.Conv2d(3, 4, 3), normalized=((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))


@settings(max_examples=100, deadline=None)
@given(low=st.floats(-3, 3), high=st.floats(-3, 3))
def test_exactly_the_unit_interval_is_taken(low: float, high: float) -> None:
    images = torch.full((2, 3, 4, 4), 0.5)
    images[0, 0, 0, 0], images[1, 2, 3, 3] = low, high
    inside = all(-ROUNDING <= float(v) <= 1 + ROUNDING for v in (images[0, 0, 0, 0], images[1, 2, 3, 3]))
    for network, given_images in ((NETWORK, images), (NORMALIZED, (images - 0.5) / 0.25)):
        if inside:
            assert Values(given_images, network).check("raise") is None
        elif abs(min(low, 0)) > 2 * ROUNDING or max(high, low) > 1 + 2 * ROUNDING:
            with pytest.raises(BadImages, match="must lie in"):
                Values(given_images, network).check("raise")


def test_finite_images_are_told_from_others() -> None:
    images = torch.rand(4, 3, 5, 5)
    images[1, 0, 0, 0] = float("nan")
    images[3, 2, 1, 1] = float("inf")
    finite = Values(images, NETWORK).check("skip")
    assert finite is not None
    assert finite.tolist() == [True, False, True, False]


def test_the_range_of_finite_images_counts_even_beside_others() -> None:
    images = torch.rand(4, 3, 5, 5)
    images[1], images[2, 0, 0, 0] = float("nan"), 7.0
    with pytest.raises(BadImages, match="found .* to 7"):
        Values(images, NETWORK).check("skip")


def test_channels_must_agree_with_normalized() -> None:
    with pytest.raises(BadImages, match="normalized= names 3 channels, the images have 1"):
        check_form(torch.rand(2, 1, 8, 8), NORMALIZED)


def test_a_network_without_tensors_takes_cpu_floats() -> None:
    network = Network(nn.Identity())
    check_form(torch.rand(2, 3, 8, 8), network)
    assert (network.device.type, network.dtype) == ("cpu", torch.float32)
