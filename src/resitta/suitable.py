"""Which models a method can work with."""

import torch
from torch import nn

from resitta.errors import UnsuitableModel
from resitta.method import Method
from resitta.norm.bn_layers import BatchNorm, bn_layers

FROZEN = {"weight", "bias", "running_mean", "running_var"}
"""The buffers of a BatchNorm layer that cannot learn."""


def check_model(model: nn.Module, method: Method) -> None:
    """Refuse a model that lacks what a method needs, and name a method that would work."""
    if not isinstance(model, nn.Module):
        raise UnsuitableModel(f"the model must be a torch.nn.Module, found {type(model).__name__}")
    kind = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsuitableModel(f"{kind} is compiled to TorchScript; pass the module it was made from")
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise UnsuitableModel(f"{kind} has uninitialised lazy layers; call it on one batch first")
    _check_hidden_layers(model)
    layers = bn_layers(model)
    if method.needs != "nothing" and not layers:
        remedy = _thaw(model) or f"{kind} has none. Use method='source' or 'lame'."
        raise UnsuitableModel(f"{method.name} needs BatchNorm layers; {remedy}")
    bare = [name for name, layer in layers if layer.running_mean is None]
    if method.needs == "running_statistics" and bare:
        lost = f"BatchNorm layer {bare[0]!r} has no running statistics (track_running_stats=False)"
        raise UnsuitableModel(f"{method.name} needs the source statistics, but {lost}. Use method='bn' or 'tent'.")


def _thaw(model: nn.Module) -> str | None:
    """Say how to get BatchNorm layers from frozen ones, such as torchvision's, if a model has those."""
    frozen = [module for module in model.modules() if module._buffers.keys() >= FROZEN]
    if not frozen:
        return None
    name, kind = type(frozen[0]).__name__, type(model).__name__
    advice = "build it with norm_layer=torch.nn.BatchNorm2d and load_state_dict(frozen.state_dict(), strict=False)"
    return f"those of {kind} are {name}, whose weights and statistics are constants; {advice}"


def _check_hidden_layers(model: nn.Module) -> None:
    """Refuse BatchNorm layers that a module reaches past torch's own bookkeeping, where no wrapper can stand."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, list | tuple) and any(isinstance(item, BatchNorm) for item in value):
                place = f"{type(module).__name__} keeps BatchNorm layers in the plain list {name!r}"
                raise UnsuitableModel(f"{place}; make it a torch.nn.ModuleList, so that they can be found")
