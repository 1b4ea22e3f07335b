"""BatchNorm layers of any model: find them, wrap them, switch how they get their statistics.

A wrapper keeps the caller's own layer and calls it, so subclasses of BatchNorm that do more than normalise
(an activation, a dropout) keep doing it. Wrappers differ only in the statistics they let the layer use.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

HALF = frozenset((torch.float16, torch.bfloat16))
BatchNorm = _BatchNorm
"""The base class of BatchNorm1d, 2d, 3d and SyncBatchNorm."""
Moments = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From activations to the mean and biased variance of each channel."""

TINY = 1e-30
"""Added to variances so that a channel without variance has a finite inverse; rounded away in any other."""


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
    """Whether x is channels-last and not also contiguous."""
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def moved_average(
    x: Tensor, mean: Tensor, var: Tensor, rate: float, moments: Moments = batch_moments
) -> tuple[Tensor, Tensor, Tensor]:
    """EMA of the statistics toward those of a batch; return both, in new tensors, and the batch's mean."""
    if x.is_cuda and not x.requires_grad and moments is batch_moments:
        return _moved_on_cuda(x, mean.clone(), var.clone(), rate)
    batch_mean, batch_var = moments(x)
    return mean.lerp(batch_mean, rate), var.lerp(batch_var, rate), batch_mean


def _moved_on_cuda(x: Tensor, mean: Tensor, var: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Two kernels of SyncBatchNorm; for a count this large, n and n-1 are the same number in float32."""
    batch_mean, inverse_std = torch.batch_norm_stats(x, TINY)
    many = _many(x.device, batch_mean.dtype)
    torch.batch_norm_gather_stats_with_counts(x, batch_mean[None], inverse_std[None], mean, var, rate, 0.0, many)
    return mean, var, batch_mean


@functools.cache
def _many(device: torch.device, dtype: torch.dtype) -> Tensor:
    """A count n with n-1 = n in float32."""
    return torch.full((1,), 2.0**30, device=device, dtype=dtype)


def bn_layers(model: nn.Module) -> list[tuple[str, BatchNorm]]:
    """Return every BatchNorm layer with its name (1d, 2d, 3d, SyncBatchNorm and their subclasses).

    >>> [name for name, _ in bn_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))]
    ['1']
    """
    return [(name, module) for name, module in model.named_modules() if isinstance(module, BatchNorm)]


def replace_layers(model: nn.Module, kind: type[nn.Module], make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Put `make(layer)` in the place of every layer of a kind, once per layer even if it is used in several places."""
    made: dict[int, nn.Module] = {}
    places = [(name, m) for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, kind)]
    for name, layer in places:
        if id(layer) not in made:
            made[id(layer)] = make(layer)
        if not name:
            return made[id(layer)]
        model.set_submodule(name, made[id(layer)])
    return model


def in_float32_at_least(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A conversion that makes float32 of what it would halve.

    >>> in_float32_at_least(Tensor.bfloat16)(torch.zeros(1).double()).dtype
    torch.float32
    """

    def converted(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return tensor.to(moved.device, torch.float32) if moved.dtype in HALF else moved

    return converted


class AdaptiveBN(nn.Module):
    """A caller's BatchNorm layer, wrapped. In `updating` mode a forward pass also moves its statistics."""

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__()
        self.layer = layer
        self.updating = False
        self.moments: Moments = batch_moments

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # some models read num_features, eps or weight of their layers
            if name == "layer" or name.startswith("__"):
                raise
            return getattr(self.layer, name)

    def statistics(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean and variance the layer normalises with, if it has its own."""
        return None

    def set_statistics(self, mean: Tensor, var: Tensor) -> None:
        """Normalise with these tensors from now on."""

    def by_layer(self, x: Tensor) -> Tensor:
        """Call the caller's layer."""
        result: Tensor = self.layer(x)
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, to float32 instead of less: moving averages and Adam would lose small steps."""
        return super()._apply(in_float32_at_least(fn), recurse)  # type: ignore[no-untyped-call,no-any-return]

    def unwrap(self) -> BatchNorm:
        """Return the caller's layer, holding the statistics."""
        if (statistics := self.statistics()) is not None:
            self.layer.running_mean, self.layer.running_var = statistics
        return self.layer


class RunningBN(AdaptiveBN):
    """A wrapper whose statistics are the running statistics of the caller's layer."""

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the running mean and variance."""
        mean, var = self.layer.running_mean, self.layer.running_var
        assert mean is not None  # the adapter refuses models without running statistics
        assert var is not None
        return mean, var

    def set_statistics(self, mean: Tensor, var: Tensor) -> None:
        """Use these tensors as running statistics."""
        self.layer.running_mean, self.layer.running_var = mean, var


class BatchStatisticsBN(AdaptiveBN):
    """Normalise with the statistics of the batch at hand (prediction-time BN); gradients flow through them.

    A batch with one value per channel has no variance: such a batch is normalised with the source statistics.

    >>> layer = BatchStatisticsBN(nn.BatchNorm1d(1).eval())
    >>> layer(torch.tensor([[1.0], [3.0]])).flatten().round().tolist()
    [-1.0, 1.0]
    >>> layer(torch.tensor([[3.0]])).item() > 2.9
    True
    """

    source_mean: Tensor | None
    source_var: Tensor | None

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__(layer)
        self.register_buffer("source_mean", layer.running_mean)
        self.register_buffer("source_var", layer.running_var)
        layer.running_mean = layer.running_var = None  # an eval-mode layer without them uses the batch's

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, with the layer's own forward pass."""
        if x.numel() > x.shape[1] or self.source_mean is None:
            return self.by_layer(x)
        self.layer.running_mean, self.layer.running_var = self.source_mean, self.source_var
        try:
            return self.by_layer(x)
        finally:
            self.layer.running_mean = self.layer.running_var = None


@contextmanager
def updating_statistics(network: nn.Module, moments: Moments = batch_moments) -> Iterator[None]:
    """Let every wrapped layer of a network move its statistics in the forward passes inside.

    `moments` computes a batch's statistics, over several processes for example.

    Inside, layers set new tensors, since an autograd graph may hold the old ones. At the end the values are copied
    back into the original tensors, so that statistics keep their addresses.
    """
    layers = [module for module in network.modules() if isinstance(module, AdaptiveBN)]
    homes = [layer.statistics() for layer in layers]
    for layer in layers:
        layer.updating, layer.moments = True, moments
    try:
        yield
    finally:
        for layer in layers:
            layer.updating, layer.moments = False, batch_moments
        _copy_back([(layer, home) for layer, home in zip(layers, homes, strict=True) if home is not None])


@torch.no_grad()
def _copy_back(places: list[tuple[AdaptiveBN, tuple[Tensor, Tensor]]]) -> None:
    """Copy the present statistics of layers into their original tensors, in one operation, and use those again."""
    homes = [tensor for _, home in places for tensor in home]
    values = [tensor for layer, _ in places for tensor in layer.statistics() or ()]
    if homes:
        torch._foreach_copy_(homes, values)
    for layer, home in places:
        layer.set_statistics(*home)
