"""What a method needs of a model's layers, and which models have it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel
from resitta.norm.affine_layers import affine_layers
from resitta.norm.bn_layers import BatchNorm, bn_layers

FROZEN = {"weight", "bias", "running_mean", "running_var"}
"""The buffers of a frozen BatchNorm layer such as torchvision's."""


def check_model(model: nn.Module, *, needs: str, name: str, others: Mapping[str, str]) -> None:
    """Refuse a model that lacks what the method `name` needs (see `Method.needs`), and name those that work on it.

    `others`: what every known method needs.
    """
    if not isinstance(model, nn.Module):
        raise UnsuitableModel(f"the model must be a torch.nn.Module, found {type(model).__name__}")
    kind = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsuitableModel(f"{kind} is compiled to TorchScript; pass the module it was made from")
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise UnsuitableModel(f"{kind} has uninitialised lazy layers; call it on one batch first")
    _check_hidden_layers(model)
    if (reason := lack(model, needs)) is not None:
        able = [repr(other) for other, theirs in sorted(others.items()) if lack(model, theirs) is None]
        choice = " or ".join(filter(None, (", ".join(able[:-1]), *able[-1:])))
        raise UnsuitableModel(f"{name} needs {reason}; use method={choice}, which work on this model")


def lack(model: nn.Module, needs: str) -> str | None:
    """Say in words what a method needs and a model has not; None if the model has it all.

    >>> lack(nn.Sequential(nn.LayerNorm(2)), "norm")
    >>> lack(nn.Sequential(nn.LayerNorm(2)), "batch_norm")
    'BatchNorm layers, and Sequential has none'
    """
    layers = bn_layers(model)
    if needs == "norm" and not layers and not _has_trainable(model):
        return f"normalisation layers with affine parameters, and {_has_none(model)}"
    if needs in ("batch_norm", "running_statistics") and not layers:
        return f"BatchNorm layers, and {_has_none(model)}"
    bare = [place for place, layer in layers if layer.running_mean is None]
    if needs == "running_statistics" and bare:
        return f"the source statistics, and layer {bare[0]!r} has no running statistics (track_running_stats=False)"
    return None


def _has_trainable(model: nn.Module) -> bool:
    """Whether a normalisation layer has a weight that is a parameter, not a constant."""
    return any(isinstance(layer._parameters.get("weight"), Tensor) for _, layer in affine_layers(model))


def _has_none(model: nn.Module) -> str:
    """Say that a model has no such layers, and how to get them from frozen ones such as torchvision's."""
    frozen = [module for module in model.modules() if module._buffers.keys() >= FROZEN]
    kind = type(model).__name__
    if not frozen:
        return f"{kind} has none"
    advice = "build it with norm_layer=torch.nn.BatchNorm2d and load_state_dict(frozen.state_dict(), strict=False)"
    return f"those of {kind} are {type(frozen[0]).__name__}, whose weights and statistics are constants; {advice}"


def _check_hidden_layers(model: nn.Module) -> None:
    """Refuse BatchNorm layers that a module keeps outside of torch's registry, where they cannot be wrapped."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, list | tuple) and any(isinstance(item, BatchNorm) for item in value):
                place = f"{type(module).__name__} keeps BatchNorm layers in the plain list {name!r}"
                raise UnsuitableModel(f"{place}; make it a torch.nn.ModuleList, so that they can be found")
