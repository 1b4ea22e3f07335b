"""Lean training passes: keep less memory for the way back, with the same results.

Autograd keeps the input of every convolution for the gradient of its weight, which nobody asks for when only the
normalisation layers are trained, and the result of every ReLU, of which the way back needs to know only where it is
positive: four bytes of each value where one bit of information would do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
RELUS = {F.relu, F.relu_, torch.relu, Tensor.relu, Tensor.relu_}


class Lean(TorchFunctionMode):
    """Keep nothing of the input of convolutions with frozen weights, and one byte per value of a ReLU.

    >>> x, weight = torch.tensor([[[1.0, -2.0]]], requires_grad=True), torch.tensor([[[3.0]]])
    >>> with Lean():
    ...     y = F.conv1d(x.relu(), weight)
    >>> torch.autograd.grad(y.sum(), x)
    (tensor([[[3., 0.]]]),)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, with another way of keeping what it saves."""
        if func in CONVOLUTIONS:
            weight: Tensor = args[1] if len(args) > 1 else kwargs["weight"]
            if not weight.requires_grad:
                with saved_tensors_hooks(_shell_unless(weight.shape), _unpack):
                    return func(*args, **(kwargs or {}))
        if func in RELUS:
            with saved_tensors_hooks(_positive, _unpack):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


Unpack = Callable[[], Tensor]
"""What is kept of a tensor: how to make one that does its service."""


def _unpack(kept: Unpack) -> Tensor:
    return kept()


def _positive(result: Tensor) -> Unpack:
    """Keep where a result is positive."""
    where, dtype = result > 0, result.dtype
    return lambda: where.to(dtype)


def _shell_unless(weight: torch.Size) -> Callable[[Tensor], Unpack]:
    """Keep the weight; of the input, of which the gradient of the input needs no value, only how it lies in memory."""

    def pack(saved: Tensor) -> Unpack:
        if saved.shape == weight:
            return lambda: saved
        size, stride, dtype, device = saved.shape, saved.stride(), saved.dtype, saved.device
        return lambda: torch.empty_strided(size, stride, dtype=dtype, device=device)

    return pack
