"""Which models a method takes, and what to do about the others."""

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta.errors import UnsuitableModel


class FrozenBatchNorm2d(nn.Module):
    """As torchvision's: all that a BatchNorm layer has, as buffers."""

    def __init__(self, features: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.3), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((features,), value))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, var = (tensor.view(1, -1, 1, 1) for tensor in self.buffers())
        return (x - mean) * (var + 1e-5).rsqrt() * weight + bias


def network(norm_layer: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm_layer(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("method", ["resitta", "tent", "bn"])
def test_frozen_batchnorm_is_refused_with_the_way_to_thaw_it(method: str) -> None:
    frozen = network(FrozenBatchNorm2d)
    with pytest.raises(UnsuitableModel, match=r"Sequential are FrozenBatchNorm2d.*norm_layer=torch.nn.BatchNorm2d and"):
        resitta.adapt(frozen, method)
    thawed = network(nn.BatchNorm2d).eval()
    thawed.load_state_dict(frozen.state_dict(), strict=False)
    images = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(resitta.adapt(thawed, method)(images).shape, frozen(images).shape)
    torch.testing.assert_close(thawed(images), frozen(images))


def test_frozen_batchnorm_does_where_none_is_needed() -> None:
    assert resitta.adapt(network(FrozenBatchNorm2d), "source")(torch.rand(2, 3, 8, 8)).shape == (2, 4)
