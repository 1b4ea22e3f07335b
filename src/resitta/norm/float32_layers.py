"""Normalisation layers of a half-precision model whose parameters learn, and so are float32.

BatchNorm takes float32 parameters and half-precision activations everywhere; LayerNorm, GroupNorm and the others do not
on a CUDA device. Those compute in float32 altogether: hooks raise what comes in and lower what comes out, so that the
names of parameters, and layers of the caller's own classes, stay as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resitta.norm.affine_layers import affine_layers
from resitta.norm.bn_layers import HALF, BatchNorm


class InFloat32:
    """The hook before a layer; `lower` is the one after it. Both belong to one layer, in one thread at a time."""

    def __init__(self) -> None:
        self.given: torch.dtype | None = None

    def __call__(self, layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Raise half-precision inputs to float32."""
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        self.given = next((tensor.dtype for tensor in tensors if tensor.dtype in HALF), None)
        return tuple(map(_raised, args)), {name: _raised(value) for name, value in kwargs.items()}

    def lower(self, layer: nn.Module, args: Any, output: Any) -> Any:
        """Return the output in the precision of the input."""
        return output if self.given is None or not isinstance(output, Tensor) else output.to(self.given)


def compute_in_float32(layer: nn.Module) -> None:
    """Make a layer's tensors float32, and let it take and return any precision.

    >>> layer = nn.LayerNorm(2).bfloat16()
    >>> compute_in_float32(layer)
    >>> layer.weight.dtype, layer(torch.ones(1, 2, dtype=torch.bfloat16)).dtype
    (torch.float32, torch.bfloat16)
    """
    layer.float()
    _hook(layer)


def _hook(layer: nn.Module) -> None:
    if not any(isinstance(hook, InFloat32) for hook in layer._forward_pre_hooks.values()):
        hook = InFloat32()  # innermost, so that the caller's own hooks see what they would see without it
        layer.register_forward_pre_hook(hook, with_kwargs=True)
        layer.register_forward_hook(hook.lower, prepend=True)


def compute_as_given(model: nn.Module) -> nn.Module:
    """Remove the hooks of `compute_in_float32` from every layer of a model."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", hook), InFloat32)]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
    return model


def learning_layers(model: nn.Module) -> list[nn.Module]:
    """The normalisation layers other than BatchNorm that have parameters of their own: borrowed ones are buffers."""
    layers = [layer for _, layer in affine_layers(model) if not isinstance(layer, BatchNorm)]
    return [layer for layer in layers if any(tensor is not None for tensor in layer._parameters.values())]


def sparing_layers(model: nn.Module, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A conversion that leaves the tensors of these layers in float32 where it would halve them."""
    places = [(tensor, layer) for layer in learning_layers(model) for tensor in (*layer.parameters(), *layer.buffers())]
    owners = {id(tensor): (tensor, layer) for tensor, layer in places}  # alive, so that ids stay unique

    def convert(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        if id(tensor) not in owners or moved.dtype not in HALF:
            return moved
        _hook(owners[id(tensor)][1])
        return tensor.to(moved.device, torch.float32)

    return convert


def _raised(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value
