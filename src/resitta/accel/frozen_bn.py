"""Normalisation with given statistics whose gradient takes few passes over memory."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True)
class Share:
    """How statistics depend on the values they normalise: ∂μ/∂x = mean_rate, ∂σ²/∂x = 2 var_rate (x - centre).

    Rates are numbers, or one per sample and channel (N×1 or N×C); the centre is one value per channel, or N×C.

    >>> Share(centre=torch.zeros(2), mean_rate=0.5, var_rate=0.25).slopes(torch.ones(2), torch.ones(2))
    (tensor([0.2500, 0.2500]), tensor([0.5000, 0.5000]))
    """

    centre: Tensor
    mean_rate: Tensor | float
    var_rate: Tensor | float

    @staticmethod
    def of_batch(x: Tensor, mean: Tensor, rate: float) -> "Share":
        """The batch's own mean and biased variance entered the statistics at a rate, as in RoTTA."""
        each = rate * len(mean) / x.numel()
        return Share(centre=mean, mean_rate=each, var_rate=each)

    def slopes(self, by_mean: Tensor, by_var: Tensor) -> tuple[Tensor, Tensor]:
        """Given ∂L/∂μ and 2 ∂L/∂σ² of each channel, return a and b of what they add to ∂L/∂x: a x + b."""
        slope = by_var * self.var_rate
        return slope, by_mean * self.mean_rate - slope * self.centre

    @property
    def is_per_channel(self) -> bool:
        """Whether all samples have the same share."""
        return self.centre.ndim == 1 and isinstance(self.mean_rate, float) and isinstance(self.var_rate, float)


def is_replaceable(layer: _BatchNorm) -> bool:
    """Whether `frozen_bn` can replace a layer's forward pass: an ordinary trainable layer without hooks."""
    trained = torch.is_grad_enabled() and layer.weight is not None and layer.weight.requires_grad
    ordinary = type(layer).forward is _BatchNorm.forward and layer.bias is not None
    return trained and ordinary and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def frozen_bn(layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor, share: Share | None = None) -> Tensor:
    """The forward pass of a layer that `is_replaceable`, with given statistics.

    The statistics are constants, except for the share that x itself has in them.
    """
    result: Tensor = FrozenBN.apply(x, mean, var, layer.weight, layer.bias, layer.eps, share)  # type: ignore[no-untyped-call]
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
    x, mean, var, weight, bias = node.saved_tensors
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=node.eps)


class FrozenBN(torch.autograd.Function):
    """y = γ (x-μ) s + β with s = 1/sqrt(σ²+ε).

    ∂γ, ∂β and the sums below come from one pass over ∂y and x. With constant statistics ∂x = γ s ∂y. What depends on
    x has the gradients ∂μ = -γ s Σ∂y and 2 ∂σ² = -γ s³ Σ∂y(x-μ), which its `Share` passes on.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Normalise."""
        x, mean, var, weight, bias, ctx.eps, ctx.share = inputs
        ctx.save_for_backward(x, mean, var, weight, bias)
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=ctx.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, γ and β."""
        x, _, var, _, _ = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=_layout(x))
        backward = _backward_on_cuda if grad.is_cuda else _backward
        grad_x, grad_weight, grad_bias = backward(ctx, grad, torch.rsqrt(var + ctx.eps))
        return grad_x, None, None, grad_weight, grad_bias, None, None


def _backward_on_cuda(ctx: Any, grad: Tensor, inverse_std: Tensor) -> tuple[Tensor | None, ...]:
    """∂x if it is needed, ∂γ and ∂β, by the kernels of SyncBatchNorm. What depends on x is added in the same pass."""
    x, mean, _, weight, _ = ctx.saved_tensors
    total, moment, *others = torch.batch_norm_backward_reduce(grad, x, mean, inverse_std, weight, True, True, True)
    if not ctx.needs_input_grad[0]:
        return None, *others
    if ctx.share is None:
        return torch.batch_norm_elemt(grad, None, None, torch.zeros_like(mean), weight * inverse_std, 0.0), *others
    if ctx.share.is_per_channel:  # γ s (∂y - Σ∂y ∂μ/∂x - s² Σ∂y(x-μ) ∂σ²/∂x)
        sums = total * ctx.share.mean_rate, moment * ctx.share.var_rate
        given = ctx.share.centre, inverse_std, weight, *sums, _one(x.device)
        return torch.batch_norm_backward_elemt(grad, x, *given), *others
    slope, offset = (over(x, part).to(x.dtype) for part in _slopes(ctx, inverse_std, total, moment))
    return torch.addcmul(offset, x, slope).addcmul_(grad, over(x, weight * inverse_std).to(x.dtype)), *others


@functools.cache
def _one(device: torch.device) -> Tensor:
    """The number of values of a batch whose sums are divided already."""
    return torch.ones(1, dtype=torch.int32, device=device)


def _backward(ctx: Any, grad: Tensor, inverse_std: Tensor) -> tuple[Tensor | None, ...]:
    """The same on other devices, where one kernel computes everything but what depends on x."""
    x, mean, var, weight, _ = ctx.saved_tensors
    given = weight, mean, var, None, None, False, ctx.eps, (ctx.needs_input_grad[0], True, True)
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(grad, x, *given)
    if ctx.needs_input_grad[0] and ctx.share is not None:
        slope, offset = _slopes(ctx, inverse_std, grad_bias, grad_weight / inverse_std)
        grad_x.addcmul_(x, over(x, slope).to(x.dtype)).add_(over(x, offset))
    return grad_x, grad_weight, grad_bias


def _slopes(ctx: Any, inverse_std: Tensor, total: Tensor, moment: Tensor) -> tuple[Tensor, Tensor]:
    """What the share adds to ∂x, given Σ∂y and Σ∂y(x-μ)."""
    scale = -ctx.saved_tensors[3] * inverse_std
    slopes: tuple[Tensor, Tensor] = ctx.share.slopes(scale * total, scale * inverse_std.square() * moment)
    return slopes


def through_statistics(x: Tensor, mean: Tensor, var: Tensor, eps: float, share: Share) -> Tensor:
    """Return x, such that normalising it with constant statistics has the gradient of their depending on it.

    For layers that `frozen_bn` cannot replace.
    """
    result: Tensor = ThroughStatistics.apply(x, mean, var, eps, share)  # type: ignore[no-untyped-call]
    return result


class ThroughStatistics(torch.autograd.Function):
    """The identity. With ∂x of constant statistics, ∂μ = -Σ∂x and 2 ∂σ² = -s² Σ∂x(x-μ)."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Return x itself."""
        x, mean, var, ctx.eps, ctx.share = inputs
        ctx.save_for_backward(x, mean, var)
        result: Tensor = x.view_as(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Add the gradient of the share."""
        x, mean, var = ctx.saved_tensors
        grad, values = grads[0].to(mean.dtype), x.to(mean.dtype)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        moment = (grad * (values - over(x, mean))).sum(axes)
        slope, offset = ctx.share.slopes(-grad.sum(axes), -moment / (var + ctx.eps))
        grad = grad + over(x, slope) * values + over(x, offset)
        return grad.to(x.dtype), None, None, None, None


def over(x: Tensor, channels: Tensor) -> Tensor:
    """Shape one value per channel, or per sample and channel, so that it broadcasts over x."""
    return channels.view(-1, x.shape[1], *[1] * (x.ndim - 2))


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
