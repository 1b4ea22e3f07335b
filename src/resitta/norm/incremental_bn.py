"""Incremental statistics: of the samples of a domain so far, balanced between classes, the source counting as some."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel
from resitta.norm.bn_layers import BatchNorm, RunningBN, batch_moments
from resitta.norm.class_balanced_bn import instance_moments

TINY = 1e-6
"""Keeps the mean of a row without samples finite; such a row has no weight."""
LEAST_VARIANCE = 1e-8


@dataclass(frozen=True)
class Observation:
    """A batch as all layers see it: to which row each sample belongs, and what the rows weigh with it."""

    assignment: Tensor
    """R×N: 1 where a sample belongs to a row, 0 in the column of a sample that is left out."""
    fade: Tensor
    """What earlier samples are multiplied with before these are added; 1 unless there are many."""
    weights: Tensor
    """As how many samples each row counts."""
    strength: Tensor
    """As how many samples the prior statistics count at most."""
    noise: float
    """How far one sample is from the statistics of its domain, as a `misfit`."""
    groups: Tensor | None = None
    """The row of each sample, if each row is a group of samples that is normalised with statistics of its own."""


def pooled(sums: Tensor, weight: Tensor, prior: Tensor, strength: Tensor) -> Tensor:
    """The mean and variance of samples, given by weighted sums of first and second moments, and of prior statistics.

    Sums are 2×…×C, prior statistics 2×C.

    >>> sums, prior = torch.tensor([[2.0], [4.0]]), torch.tensor([[0.0], [4.0]])
    >>> pooled(sums, torch.tensor(1.0), prior, torch.tensor(1.0))
    tensor([[1.],
            [3.]])
    """
    (mean, variance), total = prior, strength + weight
    first = (strength * mean + sums[0]) / total
    second = (strength * (variance + mean.square()) + sums[1]) / total
    return torch.stack((first, (second - first.square()).clamp(min=LEAST_VARIANCE)))


def each_pooled(rows: Tensor, weights: Tensor, prior: Tensor, strength: Tensor) -> Tensor:
    """The same for each row of moments by itself, R×2×C.

    >>> rows, prior = torch.tensor([[[2.0], [4.0]], [[9.0], [99.0]]]), torch.tensor([[0.0], [4.0]])
    >>> each_pooled(rows, torch.tensor([1.0, 0.0]), prior, torch.tensor(1.0))[:, :, 0]
    tensor([[1., 3.],
            [0., 4.]])
    """
    sums = (rows * weights[:, None, None]).transpose(0, 1)
    return pooled(sums, weights[:, None], prior, strength).transpose(0, 1)


def misfit(found: Tensor, expected: Tensor, eps: float) -> Tensor:
    """How far means and variances, 2×C, are from those expected: in standard deviations, squared, mean over channels.

    `eps` is the layer's: what is small for the layer is small here.

    >>> misfit(torch.tensor([[2.0], [4.0]]), torch.tensor([[0.0], [4.0]]), eps=0.0)
    tensor(1.)
    """
    std = (expected[1] + eps).clamp(min=LEAST_VARIANCE).sqrt()
    return (((found[0] - expected[0]) / std).square() + ((found[1] + eps).sqrt() / std - 1).square()).mean()


def prior_strength(
    sums: Tensor, weight: Tensor, prior: Tensor, strength: Tensor, *, noise: float, eps: float
) -> Tensor:
    """As how many samples the prior statistics count: the fewer, the further away the samples are (James-Stein).

        S = noise / (misfit - noise / W), at most `strength`

    The misfit of W samples is noise / W if only chance sets them apart from the prior statistics. What is beyond that
    is a shift of the domain, and a shift of variance noise / S makes the prior statistics worth S samples.

    >>> prior, far = torch.tensor([[0.0], [1.0]]), 8 * torch.tensor([[2.0], [5.0]])
    >>> prior_strength(far, torch.tensor(8.0), prior, torch.tensor(64.0), noise=0.8, eps=0.0)  # 0.8 / (4 - 0.1)
    tensor(0.2051)
    """
    weight = weight.clamp(min=TINY)
    first, second = sums / weight
    found = torch.stack((first, (second - first.square()).clamp(min=LEAST_VARIANCE)))
    shift = (misfit(found, prior, eps) - noise / weight).clamp(min=TINY)
    return torch.minimum(strength, noise / shift)


class IncrementalBN(RunningBN):
    """Normalise with statistics of the domain so far, held in the running statistics of the caller's layer.

    Inside `observing` a forward pass adds the batch to them first; if its samples are in groups, it normalises each
    with the statistics of its group. Inside `own_statistics` a pass normalises with those of the batch, and gradients
    flow through them.

    >>> layer = IncrementalBN(nn.BatchNorm1d(1).eval(), rows=2, domains=1)
    >>> one, first = torch.tensor(1.0), torch.tensor([1.0, 0.0])
    >>> with observing(layer, Observation(first[:, None], one, first, one, noise=9.0)):
    ...     _ = layer(torch.tensor([[2.0]]))
    >>> [values.tolist() for values in layer.statistics()]  # means 0 and 2, variances 1 and 0
    [[1.0], [1.5]]
    """

    source: Tensor
    centre: Tensor
    """Moments are taken around the source's means: around zero, rounding would hide variances of channels far off."""
    prior: Tensor
    sums: Tensor
    counts: Tensor
    """How many samples each row has; twice as many as there are if a pass calls the layer twice."""
    domains: Tensor
    """Statistics of remembered domains, or of groups of samples: D×2×C."""

    def __init__(self, layer: BatchNorm, rows: int, domains: int) -> None:
        super().__init__(layer)
        source = torch.stack(self.statistics())
        self.register_buffer("source", source, persistent=False)
        self.register_buffer("centre", torch.stack((source[0], torch.zeros_like(source[0]))), persistent=False)
        self.register_buffer("prior", source.clone())
        self.register_buffer("sums", source.new_zeros(rows, *source.shape))
        self.register_buffer("counts", source.new_zeros(rows))
        self.register_buffer("domains", source.repeat(domains, 1, 1))
        self.observation: Observation | None = None
        self.own = False
        self.misfits: list[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        if self.misfits is not None:
            found, expected = torch.stack(batch_moments(x)), torch.stack(self.statistics())
            self.misfits.append(misfit(found, expected, self.layer.eps))
        if self.observation is not None:
            self._observe(x.detach(), self.observation)
            if self.observation.groups is not None:
                return self._by_group(x, self.observation.groups)
        return self._by_batch(x) if self.own else self.by_layer(x)

    @torch.no_grad()
    def _observe(self, x: Tensor, batch: Observation) -> None:
        """Add the moments of the samples to the rows, and move the statistics."""
        if len(x) != batch.assignment.shape[1]:
            found = f"{len(x)} samples of {batch.assignment.shape[1]} images in a BatchNorm layer"
            raise UnsuitableModel(f"tide needs each image as one sample, found {found}; use method='resitta'")
        means, variances = instance_moments(x)
        with torch.autocast(x.device.type, enabled=False):
            means = means - self.centre[0]
            moments = torch.stack((means, variances + means.square()), dim=1)
            moments = moments.where(batch.assignment.any(dim=0)[:, None, None], 0.0)  # those left out may not be finite
            assignment, fade = batch.assignment.to(moments), batch.fade.to(moments)
            self.sums.mul_(fade).add_((assignment @ moments.flatten(1)).view_as(self.sums))
            self.counts.mul_(fade).add_(assignment.sum(dim=1))
            prior, most = self.prior - self.centre, batch.strength.to(moments)
            rows, weights = self.sums / self.counts.clamp(min=TINY)[:, None, None], batch.weights.to(moments)
            sums, weight = torch.einsum("r,rmc->mc", weights, rows), weights.sum()
            strength = prior_strength(sums, weight, prior, most, noise=batch.noise, eps=self.layer.eps)
            self.move_to(pooled(sums, weight, prior, strength) + self.centre)
            if batch.groups is not None:
                groups = min(len(rows), len(self.domains))
                self.domains[:groups] = each_pooled(rows[:groups], weights[:groups], prior, most) + self.centre

    def _by_batch(self, x: Tensor) -> Tensor:
        """The layer's own forward pass with the statistics of the batch; a single value per channel has none."""
        if x.numel() == x.shape[1]:
            return self.by_layer(x)
        statistics = self.statistics()
        self.layer.running_mean = self.layer.running_var = None
        try:
            return self.by_layer(x)
        finally:
            self.set_statistics(*statistics)

    def _by_group(self, x: Tensor, groups: Tensor) -> Tensor:
        """Normalise each sample with the statistics of its group, by bringing these to the layer's own first."""
        places = [1] * (x.ndim - 2)
        mean, variance = (values.view(*values.shape, *places) for values in self.domains[groups].unbind(1))
        own_mean, own_variance = (values.view(-1, *places) for values in self.statistics())
        scale = ((own_variance + self.layer.eps) / (variance + self.layer.eps)).sqrt()
        return self.by_layer(((x - mean) * scale + own_mean).to(x.dtype))

    @torch.no_grad()
    def move_to(self, statistics: Tensor) -> None:
        """Use these statistics, 2×C, in the place of the present ones."""
        for place, values in zip(self.statistics(), statistics, strict=True):
            place.copy_(values)

    @torch.no_grad()
    def begin(self, *, afresh: bool) -> None:
        """Begin a domain: on the statistics of the source if `afresh`, else on the present ones."""
        self.prior.copy_(self.source if afresh else torch.stack(self.statistics()))
        self.sums.zero_()
        self.counts.zero_()
        self.move_to(self.prior)

    @torch.no_grad()
    def remember(self, domain: int) -> None:
        """Keep the present statistics as those of a domain."""
        self.domains[domain] = torch.stack(self.statistics())

    @torch.no_grad()
    def recall(self, domain: int) -> None:
        """Take a remembered domain for the prior of the one at hand."""
        self.prior.copy_(self.domains[domain])


def incremental_layers(network: nn.Module) -> list[IncrementalBN]:
    """Every such layer of a network."""
    return [module for module in network.modules() if isinstance(module, IncrementalBN)]


@contextmanager
def observing(network: nn.Module, batch: Observation) -> Iterator[None]:
    """Let the layers of a network take in a batch in the forward pass inside."""
    yield from _with(network, "observation", batch, None)


@contextmanager
def own_statistics(network: nn.Module) -> Iterator[None]:
    """Let the layers of a network normalise with the statistics of the batch inside."""
    yield from _with(network, "own", True, False)


@contextmanager
def measuring(network: nn.Module) -> Iterator[list[Tensor]]:
    """Let each layer of a network add to a list how far the batch is from the statistics it normalises with."""
    found: list[Tensor] = []
    for _ in _with(network, "misfits", found, None):
        yield found


def _with(network: nn.Module, name: str, value: object, otherwise: object) -> Iterator[None]:
    layers = incremental_layers(network)
    for layer in layers:
        setattr(layer, name, value)
    try:
        yield
    finally:
        for layer in layers:
            setattr(layer, name, otherwise)
