"""Normalisation with given statistics whose gradient takes few passes over memory on a CUDA device."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


def is_replaceable(layer: _BatchNorm) -> bool:
    """Whether `frozen_bn` can replace a layer's forward pass: an ordinary trainable layer without hooks."""
    trained = torch.is_grad_enabled() and layer.weight is not None and layer.weight.requires_grad
    ordinary = type(layer).forward is _BatchNorm.forward and layer.bias is not None
    return trained and ordinary and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def frozen_bn(
    layer: _BatchNorm,
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    batch_mean: Tensor | None = None,
    batch_rate: float = 0.0,
) -> Tensor:
    """The forward pass of a layer that `is_replaceable`, with given statistics, on a CUDA device.

    The statistics are constants, except that those of x itself entered them at `batch_rate`, as in RoTTA.
    """
    values = x, mean, var, layer.weight, layer.bias, layer.eps, batch_mean, batch_rate
    result: Tensor = FrozenBN.apply(*values)  # type: ignore[no-untyped-call]
    return result


def is_frozen_bn(x: Tensor) -> bool:
    """Whether x is what `frozen_bn` returned, so that `recompute(x.grad_fn)` works.

    >>> y = frozen_bn(torch.nn.BatchNorm2d(1), torch.ones(1, 1, 1, 1), torch.zeros(1), torch.ones(1))
    >>> is_frozen_bn(y), is_frozen_bn(2 * y), torch.equal(recompute(y.grad_fn), y)
    (True, False, True)
    """
    return getattr(x.grad_fn, "_forward_cls", None) is FrozenBN


def recompute(node: Any) -> Tensor:
    """The result of a `frozen_bn`, from its autograd node, before its backward pass."""
    x, mean, var, weight, bias, _ = node.saved_tensors
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=node.eps)


class FrozenBN(torch.autograd.Function):
    """y = γ (x-μ) s + β with s = 1/sqrt(σ²+ε).

    ∂γ, ∂β and the sums below come from one pass over ∂y and x. With constant statistics ∂x = γ s ∂y. If the mean m and
    the variance of the n values of a channel entered the statistics at rate α, that adds
    -α/n γ s (Σ∂y + s² (x-m) Σ∂y(x-μ)).
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Normalise."""
        x, mean, var, weight, bias, ctx.eps, batch_mean, ctx.batch_rate = inputs
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
            if ctx.batch_rate:
                factor = -ctx.batch_rate * len(mean) / x.numel() * scale
                slope = factor * inverse_std.square() * moment
                grad_x.addcmul_(x, _over(x, slope).to(x.dtype)).add_(_over(x, factor * total - slope * batch_mean))
        return grad_x, None, None, grad_weight, grad_bias, None, None, None


def _over(x: Tensor, channels: Tensor) -> Tensor:
    """Shape one value per channel so that it broadcasts over x."""
    return channels.view(1, -1, *[1] * (x.ndim - 2))


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
