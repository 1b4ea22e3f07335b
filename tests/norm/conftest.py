"""What the tests of the layers share: one layer of each kind, and the formula of BatchNorm."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Case = tuple[_BatchNorm, Tensor]
Formula = Callable[[_BatchNorm, Tensor, Tensor, Tensor], Tensor]

KINDS: dict[str, tuple[type[_BatchNorm], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, (6, 4)),
    "1d-series": (nn.BatchNorm1d, (6, 4, 5)),
    "2d": (nn.BatchNorm2d, (6, 4, 3, 5)),
    "3d": (nn.BatchNorm3d, (6, 4, 2, 3, 2)),
    "sync": (nn.SyncBatchNorm, (6, 4, 3, 3)),
}


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> Case:
    """A layer of each kind whose statistics and affine parameters are not the trivial ones, and a batch for it."""
    kind, shape = KINDS[request.param]
    generator = torch.Generator().manual_seed(0)
    layer = kind(4, eps=1e-3).double().eval()
    for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
        assert tensor is not None
        tensor.data = torch.rand(4, generator=generator).double() + 0.5
    return layer, torch.randn(shape, generator=generator).double() * 2 + 1


@pytest.fixture
def by_formula() -> Formula:
    """BatchNorm with given statistics, per channel or already of the batch's shape."""

    def formula(layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        shape = [1, -1] + [1] * (x.ndim - 2)
        if mean.ndim == 1:
            mean, var = mean.view(shape), var.view(shape)
        return (x - mean) / (var + layer.eps).sqrt() * layer.weight.view(shape) + layer.bias.view(shape)

    return formula
