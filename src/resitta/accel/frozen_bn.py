"""Normalisation with given statistics whose gradient takes few passes over memory on a CUDA device."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


def trains_plainly(layer: _BatchNorm) -> bool:
    """Whether `fixed_norm` can stand in for a layer's forward pass: an ordinary layer, watched by nobody, in training.

    >>> trains_plainly(torch.nn.BatchNorm2d(3)), trains_plainly(torch.nn.BatchNorm2d(3, affine=False))
    (True, False)
    """
    trained = torch.is_grad_enabled() and layer.weight is not None and layer.weight.requires_grad
    ordinary = type(layer).forward is _BatchNorm.forward and layer.bias is not None
    return trained and ordinary and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def fixed_norm(
    layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor, *, batch_mean: Tensor | None = None, share: float = 0.0
) -> Tensor:
    """The forward pass of a layer that `trains_plainly`, with given statistics, on a CUDA device.

    The statistics are constants, except that the moments of x itself have a `share` in them, as in RoTTA.
    """
    values = x, mean, var, layer.weight, layer.bias, layer.eps, batch_mean, share
    result: Tensor = FixedNorm.apply(*values)  # type: ignore[no-untyped-call]
    return result


def made(x: Tensor) -> bool:
    """Whether x is what `fixed_norm` returned, so that `again(x.grad_fn)` can compute it anew.

    >>> y = fixed_norm(torch.nn.BatchNorm2d(1), torch.ones(1, 1, 1, 1), torch.zeros(1), torch.ones(1))
    >>> made(y), made(2 * y), torch.equal(again(y.grad_fn), y)
    (True, False, True)
    """
    return getattr(x.grad_fn, "_forward_cls", None) is FixedNorm


def again(node: Any) -> Tensor:
    """The result of a `fixed_norm`, from its node in the graph of gradients, until that has been gone back through."""
    x, mean, var, weight, bias, _ = node.saved_tensors
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=node.eps)


class FixedNorm(torch.autograd.Function):
    """y = γ (x-μ) s + β with s = 1/sqrt(σ²+ε).

    ∂γ, ∂β and the sums below come from one pass over ∂y and x. With constant statistics ∂x = γ s ∂y. If the n values
    of a channel have the share α in them, by their mean m and variance, that adds
    -α/n γ s (Σ∂y + s² (x-m) Σ∂y(x-μ)).
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Normalise."""
        x, mean, var, weight, bias, ctx.eps, batch_mean, ctx.share = inputs
        ctx.save_for_backward(x, mean, var, weight, bias, batch_mean)
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=ctx.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, γ and β."""
        x, mean, var, weight, _, batch_mean = ctx.saved_tensors
        inverse_std = torch.rsqrt(var + ctx.eps)
        grad = grads[0].contiguous(memory_format=_layout(x))
        total, moment, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
            grad, x, mean, inverse_std, weight, True, True, True
        )
        grad_x = None
        if ctx.needs_input_grad[0]:
            scale = weight * inverse_std
            grad_x = torch.batch_norm_elemt(grad, None, None, torch.zeros_like(mean), scale, 0.0)
            if ctx.share:
                factor = -ctx.share * len(mean) / x.numel() * scale
                slope = factor * inverse_std.square() * moment
                grad_x.addcmul_(x, _over(x, slope).to(x.dtype)).add_(_over(x, factor * total - slope * batch_mean))
        return grad_x, None, None, grad_weight, grad_bias, None, None, None


def _over(x: Tensor, channels: Tensor) -> Tensor:
    """Shape one value per channel so that it broadcasts over x."""
    return channels.view(1, -1, *[1] * (x.ndim - 2))


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
