"""Less memory for the backward pass, with the same results.

Autograd saves the input of every convolution for the gradient of its weight; frozen convolutions need no saved input.
It saves the result of every ReLU, whose backward pass needs only the sign mask. Behind a normalisation, which saves its
own input, even the mask can be recomputed.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from resitta.accel.frozen_bn import is_frozen_bn, recompute

CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
RELUS = {F.relu, torch.relu, Tensor.relu}
RELUS_IN_PLACE = {F.relu_, Tensor.relu_}


class LowMemoryBackward(TorchFunctionMode):
    """Saves no input of convolutions with frozen weights, and of a ReLU a mask, or nothing.

    >>> x, weight = torch.tensor([[[1.0, -2.0]]], requires_grad=True), torch.tensor([[[3.0]]])
    >>> with LowMemoryBackward():
    ...     y = F.conv1d(x.relu(), weight)
    >>> torch.autograd.grad(y.sum(), x)
    (tensor([[[3., 0.]]]),)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, with other hooks for what it saves."""
        kwargs = kwargs or {}
        if func in RELUS | RELUS_IN_PLACE:
            return _relu(*args, **kwargs, in_place=func in RELUS_IN_PLACE)
        if func in CONVOLUTIONS:
            weight: Tensor = args[1] if len(args) > 1 else kwargs["weight"]
            if not weight.requires_grad:
                with saved_tensors_hooks(_shell_unless(weight.shape), operator.call):
                    return func(*args, **kwargs)
        return func(*args, **kwargs)


def _relu(input: Tensor, inplace: bool = False, *, in_place: bool = False) -> Tensor:
    """Stand in for torch's functions of that name, whose argument is called `input`."""
    in_place = inplace or in_place
    if in_place and input._is_view():  # torch allows that to its own operations alone
        return input.relu_()
    result: Tensor = LowMemoryReLU.apply(input, in_place)  # type: ignore[no-untyped-call]
    return result


class LowMemoryReLU(torch.autograd.Function):
    """max(x, 0), which saves its sign mask, unless x can be recomputed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, in_place: bool) -> Tensor:
        """Cut off below zero."""
        ctx.node = x.grad_fn if is_frozen_bn(x) else None
        result = x.relu_() if in_place else x.relu()
        if in_place:
            ctx.mark_dirty(x)
        if ctx.node is None:
            ctx.save_for_backward(result > 0)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Let the gradient through where x was positive."""
        if ctx.node is not None:
            return torch.ops.aten.threshold_backward(grads[0], recompute(ctx.node), 0), None
        (positive,) = ctx.saved_tensors
        # Dropout's backward kernel applies a mask as well, in half the time of torch.where.
        return torch.ops.aten.native_dropout_backward(grads[0], positive, 1.0), None


Unpack = Callable[[], Tensor]
"""What is saved of a tensor: a function that returns it, or one of its shape."""


def _shell_unless(weight: torch.Size) -> Callable[[Tensor], Unpack]:
    """Save the weight; of the input only its shape and strides, since its own gradient needs no values."""

    def pack(saved: Tensor) -> Unpack:
        if saved.shape == weight:
            return lambda: saved
        size, stride, dtype, device = saved.shape, saved.stride(), saved.dtype, saved.device
        return lambda: torch.empty_strided(size, stride, dtype=dtype, device=device)

    return pack
