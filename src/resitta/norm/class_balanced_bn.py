"""Class-balanced BatchNorm: statistics for each class, and the mean over the classes to normalise with.

Samples move the statistics of the class they are labelled with. Every class counts the same in the global statistics,
however often the stream shows it: μ = mean_k μ_k, σ² = mean_k σ²_k + var_k μ_k. TRIBE normalises with them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resitta.accel.frozen_bn import Share, frozen_bn, is_replaceable, through_statistics
from resitta.norm.bn_layers import BatchNorm, RunningBN, updating_statistics
from resitta.norm.class_rows import Bits, ClassRows


@dataclass(frozen=True)
class LabelledBatch:
    """The labels of a batch, and how far each sample moves the statistics of its class: the same in every layer.

    A quantity of a class is held by each of its samples, so that shapes do not depend on the labels.
    """

    labels: Tensor
    rates: Tensor
    """The rate of each sample; those of a class add up to 1 at most."""
    pull: Tensor
    """N×N: in row i, the rates of the samples that share the label of sample i, else 0."""
    first: Tensor
    """The index of the first sample of the same label."""
    share: Tensor
    """Weights of a mean over the classes present: they add up to one, and equally over each class."""

    total: Tensor
    """The rate at which the class of each sample moves."""
    mean_total: Tensor
    """The mean of these rates over the classes present."""
    present: Tensor
    """How many classes are present."""


def same_label(labels: Tensor) -> Tensor:
    """N×N: whether two samples share a label.

    >>> same_label(torch.tensor([3, 1, 3])).int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    return labels[:, None] == labels


def labelled_batch(labels: Tensor, rates: Tensor) -> LabelledBatch:
    """Find out which samples share a label.

    >>> batch = labelled_batch(torch.tensor([3, 1, 3]), torch.full((3,), 0.25))
    >>> batch.total, batch.first, batch.share, batch.present
    (tensor([0.5000, 0.2500, 0.5000]), tensor([0, 1, 0]), tensor([0.2500, 0.5000, 0.2500]), tensor(2.))
    """
    same = same_label(labels)
    pull, weights = same * rates, 1 / same.sum(dim=1).to(rates)
    present, total = weights.sum().round(), pull.sum(dim=1)
    share = weights / present
    first = same.int().argmax(dim=1)
    return LabelledBatch(labels, rates, pull, first, share, total, (share * total).sum(), present)


def capped_rates(labels: Tensor, eta: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """The rate of each sample, η, less where a class has so many samples that it would move by more than 1.

    >>> capped_rates(torch.tensor([0, 1, 1, 1, 1]), eta=0.5)
    tensor([0.5000, 0.2500, 0.2500, 0.2500, 0.2500])
    """
    return (1 / same_label(labels).sum(dim=1).to(dtype)).clamp(max=eta)


def instance_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and biased variance of each channel of each sample over its positions, in float32 at least.

    >>> instance_moments(torch.tensor([[[1.0, 3.0]], [[5.0, 5.0]]]))
    (tensor([[2.],
            [5.]]), tensor([[1.],
            [0.]]))
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    axes = list(range(2, x.ndim))
    if not axes:
        return x, torch.zeros_like(x)
    if x.is_cuda:
        var, mean = torch.var_mean(x, axes, correction=0)
        return mean, var
    mean = x.mean(axes, keepdim=True)  # on a CPU, two passes are many times faster than torch's single one
    return mean.flatten(1), (x - mean).square_().mean(axes)


def global_statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and variance of a mixture in which all classes have the same weight; unbiased over the classes.

    >>> global_statistics(torch.tensor([[[1.0], [0.5]], [[3.0], [1.5]]]))  # K×2×C: means and variances
    (tensor([2.]), tensor([3.]))
    """
    means, variances = rows.unbind(dim=1)
    mean = means.mean(dim=0)
    between = (means - mean).square_().sum(dim=0) / (len(rows) - 1)
    return mean, variances.mean(dim=0) + between


@dataclass(frozen=True)
class Moved:
    """The statistics of all classes after a batch, and what it changed."""

    rows: Tensor
    """K×2×C: the mean and variance of each class and channel."""
    reached: Tensor
    """N×C: for each sample, the mean of its class that the batch alone leads to, before anything is shared."""


def move_classes(rows: Tensor, means: Tensor, variances: Tensor, batch: LabelledBatch, gamma: float) -> Moved:
    """Move the statistics of the labelled classes towards a batch, and a fraction γ of that, on average, all classes.

    `means` and `variances` are those of each sample, N×C. With δ_i = mean_i - μ_k and rates m_i, class k moves by
    Δ = Σ m_i δ_i and σ²_k by J - r σ²_k, where J = Σ m_i (var_i + δ_i²) - Δ² and r = Σ m_i: an exact EMA of the first
    two moments. A class moves by 1-γ of its own step; then all move by γ of the mean step of the classes present.

    >>> rows, batch = torch.tensor([[[0.0], [1.0]]] * 2), labelled_batch(torch.tensor([1]), torch.tensor([0.5]))
    >>> move_classes(rows, torch.tensor([[2.0]]), torch.tensor([[3.0]]), batch, gamma=0.0).rows[:, :, 0]
    tensor([[0., 1.],
            [1., 3.]])
    """
    old = rows.index_select(0, batch.labels)
    deviations = means - old[:, 0]
    parts = torch.stack((deviations, torch.addcmul(variances, deviations, deviations)), dim=1)
    steps = (batch.pull @ parts.flatten(1)).view_as(old)
    steps[:, 1].addcmul_(steps[:, 0], steps[:, 0], value=-1)  # Δ and J
    total = batch.total.view(-1, 1)
    new = old.add(steps, alpha=1 - gamma)
    new[:, 1].addcmul_(total, old[:, 1], value=gamma - 1)
    rows = rows.index_copy(0, batch.labels, new.index_select(0, batch.first))
    if gamma:
        step = (batch.share @ steps.flatten(1)).view_as(rows[0])
        rows[:, 1].mul_(1 - gamma * batch.mean_total)
        rows.add_(step, alpha=gamma)
    return Moved(rows, reached=old[:, 0] + steps[:, 0])


def share_of(moved: Moved, mean: Tensor, batch: LabelledBatch, gamma: float, positions: int) -> Share:
    """How the global statistics depend on the batch: the gradient of `move_classes` and `global_statistics`."""
    own: float | Tensor = (1 - gamma) / len(moved.rows)
    by_mean = by_var = own
    if gamma:  # what all classes share
        common = gamma / batch.present
        by_mean, by_var = own + common, own * (1 - gamma * batch.mean_total) + common
    apart = moved.rows[:, 0].index_select(0, batch.labels) - mean
    centre = moved.reached - apart * ((1 - gamma) / (len(moved.rows) - 1) / by_var)
    rates = batch.rates.view(-1, 1)
    return Share(centre, mean_rate=rates * (by_mean / positions), var_rate=rates * (by_var / positions))


class ClassBalancedBN(RunningBN):
    """Normalise with the global statistics, which follow those of the classes; gradients flow through a batch's share.

    It updates inside `updating_classes`. The running statistics of the caller's layer hold the global ones.
    Layers without positions, such as BatchNorm1d on N×C, take each value as the mean of its sample, with no variance.

    >>> layer = ClassBalancedBN(nn.BatchNorm1d(1).eval(), classes=2, gamma=0.0)
    >>> with updating_classes(layer, labelled_batch(torch.tensor([1]), torch.tensor([0.5]))):
    ...     _ = layer(torch.tensor([[4.0]]))
    >>> layer.statistics()  # class 1: mean 2, variance 1/2 + 8 - 4; class 0: as before
    (tensor([1.]), tensor([4.7500]))
    """

    def __init__(self, layer: BatchNorm, classes: int, gamma: float, bits: Bits = 32) -> None:
        super().__init__(layer)
        self.gamma = gamma
        self.rows = ClassRows(torch.stack(self.statistics()), classes, bits)
        self.batch: LabelledBatch | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, after the statistics moved towards the labelled batch, if there is one."""
        if self.batch is None:
            return self.by_layer(x)
        moved = self._follow(x.detach(), self.batch)
        mean, var = self.statistics()
        if not torch.is_grad_enabled():
            return self.by_layer(x)
        share = share_of(moved, mean, self.batch, self.gamma, positions=x[0, 0].numel())
        if is_replaceable(self.layer):
            return frozen_bn(self.layer, x, mean, var, share)
        return self.by_layer(through_statistics(x, mean, var, self.layer.eps, share))

    @torch.no_grad()
    def _follow(self, x: Tensor, batch: LabelledBatch) -> Moved:
        """Move the statistics, the global ones in new tensors: an autograd graph may hold the old ones."""
        means, variances = instance_moments(x)
        with torch.autocast(x.device.type, enabled=False):
            moved = move_classes(self.rows.read().to(means.dtype), means, variances, batch, self.gamma)
        self.set_statistics(*global_statistics(moved.rows))
        self.rows.write(moved.rows)
        return moved


@contextmanager
def updating_classes(network: nn.Module, batch: LabelledBatch) -> Iterator[None]:
    """Let every `ClassBalancedBN` of a network move by a labelled batch in the forward passes inside."""
    layers = [module for module in network.modules() if isinstance(module, ClassBalancedBN)]
    for layer in layers:
        layer.batch = batch
    try:
        with updating_statistics(network):
            yield
    finally:
        for layer in layers:
            layer.batch = None
