"""BatchNorm layers of any model: find them, wrap them, switch how they get their statistics.

A wrapper keeps the caller's own layer and calls it, so subclasses of BatchNorm that do more than normalise
(an activation, a dropout) keep doing it. Wrappers differ only in the statistics they let the layer use.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from resitta.norm.moments import Moments, batch_moments

HALF = frozenset((torch.float16, torch.bfloat16))
BatchNorm = _BatchNorm
"""What BatchNorm1d, 2d, 3d and SyncBatchNorm have in common."""


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
        """Return what the caller's layer makes of x."""
        result: Tensor = self.layer(x)
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, to float32 instead of less: moving averages and Adam would lose small steps."""

        def kept(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device, torch.float32) if moved.dtype in HALF else moved

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call,no-any-return]

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

    `moments` gives a batch's statistics where they are more than those of the batch at hand.

    Inside, a layer sets new tensors, since a graph of gradients may hold the old ones. At the end their values are
    written to where the statistics were before, so that statistics keep their place in memory.
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
        _bring_home([(layer, home) for layer, home in zip(layers, homes, strict=True) if home is not None])


@torch.no_grad()
def _bring_home(places: list[tuple[AdaptiveBN, tuple[Tensor, Tensor]]]) -> None:
    """Write the present statistics of layers into the given tensors, all at once, and let the layers use those."""
    homes = [tensor for _, home in places for tensor in home]
    values = [tensor for layer, _ in places for tensor in layer.statistics() or ()]
    if homes:
        torch._foreach_copy_(homes, values)
    for layer, home in places:
        layer.set_statistics(*home)
