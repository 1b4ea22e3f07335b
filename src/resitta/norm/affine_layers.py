"""Normalisation layers of any kind, by what most methods train: their affine parameters."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

KNOWN = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""The base classes of torch's normalisation layers: BatchNorm and InstanceNorm have the first in common."""


def affine_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every normalisation layer that has a weight, with its name.

    These are torch's own (BatchNorm, InstanceNorm, LayerNorm, GroupNorm, RMSNorm), their subclasses, and layers without
    children whose class is called a norm and whose weight has one value per channel, as other libraries write them.

    >>> [name for name, _ in affine_layers(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.GroupNorm(1, 3)))]
    ['1', '2']
    >>> affine_layers(nn.Sequential(nn.InstanceNorm2d(3)))  # without a weight by default
    []
    """
    return [(name, module) for name, module in model.named_modules() if _is_affine_norm(module)]


def affine_tensors(model: nn.Module) -> list[Tensor]:
    """The weights and biases of these layers, each once."""
    found = [getattr(layer, name, None) for _, layer in affine_layers(model) for name in ("weight", "bias")]
    return list({id(tensor): tensor for tensor in found if isinstance(tensor, Tensor)}.values())


def mean_scale(model: nn.Module) -> float:
    """The mean |γ| over the weights γ of these layers: a learning rate in this unit is alike in all networks.

    Adam moves a parameter by the learning rate, whatever the parameter's size, and scales differ tenfold between
    networks.

    >>> mean_scale(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    1.0
    """
    weights = [weight for _, layer in affine_layers(model) if isinstance(weight := layer.weight, Tensor)]
    if not weights:
        return 0.0
    return float(torch.cat([weight.detach().abs().flatten() for weight in weights]).mean())


def _is_affine_norm(module: nn.Module) -> bool:
    weight = vars(module)["_parameters"].get("weight", vars(module)["_buffers"].get("weight"))
    if not isinstance(weight, Tensor):
        return False
    called_norm = "norm" in type(module).__name__.lower() and weight.ndim == 1 and not module._modules
    return isinstance(module, KNOWN) or called_norm
