"""The statistics of a batch, and moving averages that follow them."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

Moments = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From activations to the mean and biased variance of each channel."""

TINY = 1e-30
"""Added to variances so that a channel without any has a finite inverse; lost beside every other."""


def batch_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and biased variance of each channel over everything but the channel axis, in float32 at least.

    >>> batch_moments(torch.tensor([[1.0], [3.0]]))
    (tensor([2.]), tensor([1.]))
    """
    axes = [axis for axis in range(x.ndim) if axis != 1]
    if x.is_cuda and not x.requires_grad:  # one pass at the speed of memory, whatever the layout
        mean, inverse_std = torch.batch_norm_stats(x, 0.0)
        return mean, inverse_std.pow(-2).where(inverse_std > 0, 0.0)  # no variance has the inverse 0 there
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.device.type == "cpu" and not x.requires_grad and _channels_last(x):  # torch has a fast kernel for these alone
        mean, var = torch.batch_norm_update_stats(x, None, None, 0.0)
        return mean, var
    if x.device.type == "cpu":  # for others two passes are many times faster than torch's single one
        mean = x.mean(axes, keepdim=True)
        deviation = x - mean
        squares = deviation.square() if deviation.requires_grad else deviation.square_()
        return mean.flatten(), squares.mean(axes)
    var, mean = torch.var_mean(x, axes, correction=0)
    return mean, var


def _channels_last(x: Tensor) -> bool:
    """Whether x lies in memory position by position, and not also channel by channel."""
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def moved_average(
    x: Tensor, mean: Tensor, var: Tensor, share: float, moments: Moments = batch_moments
) -> tuple[Tensor, Tensor, Tensor]:
    """Move averages towards the moments of a batch by a share; return both, in new tensors, and the batch's mean.

    >>> moved_average(torch.tensor([[2.0], [2.0]]), torch.zeros(1), torch.ones(1), 0.5)
    (tensor([1.]), tensor([0.5000]), tensor([2.]))
    """
    if x.is_cuda and not x.requires_grad and moments is batch_moments:
        return _moved_on_cuda(x, mean.clone(), var.clone(), share)
    batch_mean, batch_var = moments(x)
    return mean.lerp(batch_mean, share), var.lerp(batch_var, share), batch_mean


def _moved_on_cuda(x: Tensor, mean: Tensor, var: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Two kernels made for SyncBatchNorm; told of so many values, they make no difference between n and n-1."""
    batch_mean, inverse_std = torch.batch_norm_stats(x, TINY)
    many = _many(x.device, batch_mean.dtype)
    torch.batch_norm_gather_stats_with_counts(x, batch_mean[None], inverse_std[None], mean, var, share, 0.0, many)
    return mean, var, batch_mean


@functools.cache
def _many(device: torch.device, dtype: torch.dtype) -> Tensor:
    """A number n whose n-1 is n in float32."""
    return torch.full((1,), 2.0**30, device=device, dtype=dtype)
