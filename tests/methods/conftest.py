"""What the tests of the methods share: a seed, a stream, a model in float64, and networks on batch statistics."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let the models that tests build be the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def stream() -> Callable[[int], Tensor]:
    """Float64 images in [0, 1] whose brightness and tint drift."""

    def images(n: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        base = torch.rand(n, 3, 10, 10, generator=generator)
        shade = torch.linspace(0.2, 0.9, n).view(-1, 1, 1, 1)
        tint = torch.rand(n, 3, 1, 1, generator=generator)
        return (base * shade * 0.6 + tint * 0.4).double()

    return images


@pytest.fixture
def precise(model: nn.Module) -> nn.Module:
    """The small network in float64, so that equal means equal to ten digits."""
    return model.double()


@pytest.fixture
def on_batch_statistics() -> Callable[[nn.Module], nn.Module]:
    """Copy a model so that torch's own training mode gives it batch statistics, and nothing else changes."""

    def twin(model: nn.Module) -> nn.Module:
        copied = copy.deepcopy(model).train()
        for module in copied.modules():
            if isinstance(module, _BatchNorm):
                module.momentum = 0.0
        return copied

    return twin


@pytest.fixture
def affine() -> Callable[[nn.Module], list[nn.Parameter]]:
    """The weights and biases of the BatchNorm layers of a model."""

    def parameters(model: nn.Module) -> list[nn.Parameter]:
        layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        return [parameter for layer in layers for parameter in (layer.weight, layer.bias)]

    return parameters
