"""Normalisation with fixed statistics whose gradient is computed in few passes over memory on a CUDA device."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


def trains_plainly(layer: _BatchNorm) -> bool:
    """Whether `FixedNorm` can stand in for a layer's forward pass: an ordinary layer, watched by nobody, in training.

    >>> trains_plainly(torch.nn.BatchNorm2d(3)), trains_plainly(torch.nn.BatchNorm2d(3, affine=False))
    (True, False)
    """
    trained = torch.is_grad_enabled() and layer.weight is not None and layer.weight.requires_grad
    ordinary = type(layer).forward is _BatchNorm.forward and layer.bias is not None
    return trained and ordinary and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def fixed_norm(layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """A layer's forward pass with given statistics, for layers that `trains_plainly` accepts."""
    result: Tensor = FixedNorm.apply(x, mean, var, layer.weight, layer.bias, layer.eps)  # type: ignore[no-untyped-call]
    return result


class FixedNorm(torch.autograd.Function):
    """y = γ (x-μ)/sqrt(σ²+ε) + β with μ and σ² constant: ∂x = γ/sqrt(σ²+ε) ∂y, and ∂γ, ∂β from one pass over ∂y and x.

    CUDA only. The same numbers as `F.batch_norm` in eval mode, whose own gradient takes twice the time there.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Normalise x, with the mean, the variance, γ, β and ε."""
        x, mean, var, weight, bias, eps = inputs
        ctx.save_for_backward(x, mean, torch.rsqrt(var + eps), weight)
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, γ and β."""
        x, mean, inverse_std, weight = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=_layout(x))
        reduced = torch.batch_norm_backward_reduce(grad, x, mean, inverse_std, weight, True, True, True)
        scale = (weight * inverse_std).view(1, -1, *[1] * (x.ndim - 2))
        grad_x = torch.mul(grad, scale, out=torch.empty_like(grad)) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, reduced[2], reduced[3], None


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
