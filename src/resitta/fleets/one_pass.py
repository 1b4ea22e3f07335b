"""One forward pass for samples of different streams: every BatchNorm layer takes a scale and a shift for each sample.

With fixed statistics a BatchNorm layer computes y = a x + b with a = γ/sqrt(σ²+ε) and b = β - a μ. The a and b of all
layers of one stream are one row of a table. A pass gathers the row of each sample once; every layer reads its part.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from resitta.accel.frozen_bn import over
from resitta.method import Learner
from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, bn_layers
from resitta.training.network import Network

Statistics = tuple[Tensor, Tensor]


class MixedSamples(Exception):
    """A layer was given something else than one entry per image, so that it cannot tell whose entry is whose."""


class OnePass:
    """Predicts batches whose samples belong to different streams, which differ in what BatchNorm layers hold.

    >>> from resitta.conformance import tiny_network
    >>> source = Network(tiny_network())
    >>> one, other = source.fork("affine"), source.fork("affine")
    >>> for layer in bn_layers(other.model)[0][1:2]:
    ...     _ = layer.weight.data.mul_(2)
    >>> both, images = OnePass(source, like=one), torch.rand(2, 3, 8, 8)
    >>> both.put(0, one), both.put(1, other)
    (None, None)
    >>> separate = torch.cat([one.predict(images[:1]), other.predict(images[1:])])
    >>> torch.allclose(both.predict(images, [0, 1]), separate, atol=1e-5)
    True
    """

    def __init__(self, source: Network, like: Network, *, cuda_graphs: bool = True) -> None:
        self.network = source.fork(channels_last=like.channels_last)
        self.network.replay.enabled = cuda_graphs
        layers = [layer for _, layer in bn_layers(self.network.model)]
        self.eps = torch.cat([_channels(layer).fill_(layer.eps) for layer in layers] or [torch.empty(0)])
        kind = torch.promote_types(source.dtype, torch.float32)
        self.rows = Rows(torch.empty((0, 2 * len(self.eps)), device=source.device, dtype=kind))
        starts = iter([0, *torch.tensor([layer.num_features for layer in layers]).cumsum(0).tolist()])
        self.network.with_bn(lambda layer: cast(AdaptiveBN, GatheredBN(layer, self.rows, next(starts))))

    @torch.no_grad()
    def row(self, network: Network) -> Tensor:
        """Return what a stream's network normalises with, as a row of the table."""
        return torch.cat(scales_and_shifts(network, self.eps)).to(self.rows.table)

    def put(self, place: int, network: Network) -> None:
        """Take what a stream's network normalises with into row `place` of the table."""
        self.put_row(place, self.row(network))

    @torch.no_grad()
    def put_row(self, place: int, row: Tensor) -> None:
        """Take a row into the table."""
        if place >= len(self.rows.table):
            self.rows.grow(max(2 * len(self.rows.table), place + 1, 8))
            self.network.replay.forget()  # recordings read the old table
        self.rows.table[place] = row

    def predict(self, images: Tensor, places: list[int]) -> Tensor:
        """Return the logits, each image under the row of its stream."""
        if len(places) > len(self.rows.index):
            self.rows.index = torch.zeros(len(places), dtype=torch.long, device=images.device)
            self.network.replay.forget()
        self.rows.index[: len(places)].copy_(torch.tensor(places))
        try:
            return self.network.predict(images, self._gathered)
        finally:
            self.rows.now = None

    def _gathered(self, images: Tensor) -> Tensor:
        """Gather the rows of a batch, and predict."""
        self.rows.now = self.rows.table.index_select(0, self.rows.index[: len(images)])
        return self.network(images)


class Rows:
    """The table of all streams, the index of a batch in it, and the rows of the batch."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.index = torch.empty(0, dtype=torch.long, device=table.device)
        self.now: Tensor | None = None

    def grow(self, count: int) -> None:
        """Make room for more streams."""
        table = self.table.new_zeros((count, self.table.shape[1]))
        table[: len(self.table)] = self.table
        self.table = table


class GatheredBN(nn.Module):
    """Stands in for a BatchNorm layer. A caller's subclass that does more, such as an activation, still does it."""

    def __init__(self, layer: BatchNorm, rows: Rows, start: int) -> None:
        super().__init__()
        self.rows, self.start, self.stop = rows, start, start + layer.num_features
        self.eps, self.num_features = layer.eps, layer.num_features  # some models read them
        self.rest = None if is_ordinary(layer) else _neutral(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each sample."""
        rows = self.rows.now
        if rows is None or len(rows) != len(x):
            raise MixedSamples
        half = rows.shape[1] // 2
        scale, shift = rows[:, self.start : self.stop], rows[:, half + self.start : half + self.stop]
        y = scaled_and_shifted(x, scale, shift).to(x.dtype)
        return y if self.rest is None else self.rest(y)


def scaled_and_shifted(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """a x + b with a scale and a shift for each sample and channel.

    >>> scaled_and_shifted(torch.ones(2, 1, 1, 2), torch.tensor([[2.0], [3.0]]), torch.tensor([[0.0], [1.0]])).flatten()
    tensor([2., 2., 4., 4.])
    """
    if x.device.type == "cpu" and x.is_contiguous() and x.dtype == scale.dtype:  # addcmul takes twice as long there
        channels = scale.flatten()
        alone = (channels.new_zeros(len(channels)), channels.new_ones(len(channels)), channels, shift.flatten())
        return F.batch_norm(x.reshape(1, len(channels), -1), *alone, eps=0.0).view_as(x)
    return torch.addcmul(over(x, shift), x, over(x, scale))


def scales_and_shifts(network: Network, eps: Tensor) -> tuple[Tensor, Tensor]:
    """The scale a and shift b of every channel of every BatchNorm layer, in float64."""
    wrapped = {id(m.layer): m.statistics() for m in network.model.modules() if isinstance(m, AdaptiveBN)}
    layers = [layer for _, layer in bn_layers(network.model)]
    if not layers:
        return eps.double(), eps.double()
    held = [wrapped.get(id(layer)) or cast(Statistics, (layer.running_mean, layer.running_var)) for layer in layers]
    mean, var = (torch.cat(values).double() for values in zip(*held, strict=True))
    weight = torch.cat([_channels(layer).fill_(1) if layer.weight is None else layer.weight for layer in layers])
    bias = torch.cat([_channels(layer) if layer.bias is None else layer.bias for layer in layers])
    scale = weight * (var + eps).rsqrt()
    return scale, bias - mean * scale


def fits_one_pass(learner: Learner) -> bool:
    """Whether a learner learns from predictions made elsewhere, by a network that differs only in BatchNorm layers."""
    network = learner.exportable_network()
    if network is None or not learner.learns_from_predictions:
        return False
    layers = [layer for _, layer in bn_layers(network.model)]
    own = {id(parameter) for layer in layers for parameter in layer.parameters()}
    fixed = all(layer.running_mean is not None for layer in layers)
    return fixed and own.issuperset(map(id, network.parameters())) and not any(map(_has_hooks, layers))


def is_ordinary(layer: BatchNorm) -> bool:
    """Whether a layer does no more than normalise."""
    return type(layer).forward in (_BatchNorm.forward, SyncBatchNorm.forward)


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


@torch.no_grad()
def _neutral(layer: BatchNorm) -> BatchNorm:
    """Make a layer normalise with (x - 0) / sqrt(1 - ε + ε) · 1 + 0, so that only what else it does is left."""
    layer.running_mean, layer.running_var = _channels(layer), _channels(layer).fill_(1 - layer.eps)
    for name, value in (("weight", 1.0), ("bias", 0.0)):
        if (borrowed := getattr(layer, name)) is not None:
            setattr(layer, name, torch.full_like(borrowed, value))
    return layer


def _channels(layer: BatchNorm) -> Tensor:
    """A zero for each channel, in the layer's precision and place."""
    assert layer.running_mean is not None  # the adapter refuses models without running statistics
    return torch.zeros_like(layer.running_mean)
