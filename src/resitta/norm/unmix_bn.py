"""UnMix-TNS: a mixture of K components per layer "unmixes" temporally correlated batches (Tomar et al., ICLR 2024).

Each sample b is normalised with statistics of its own: those of the mixture after every component k moved toward the
sample's instance statistics by the sample's similarity to it, p_bk = softmax_k(cos(μ_b, m_k) / .07).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.accel.instance_moments import instance_moments
from resitta.errors import UnsuitableModel
from resitta.norm.bn_layers import BatchNorm
from resitta.norm.instance_aware_bn import AffineOnly

TEMPERATURE = 0.07
SPREAD = 0.5
"""α_0, the share of the source variance that lies between the components at the start."""
MOMENTUM = 0.1
"""ρ_bn of a layer with momentum=None."""


def unmix_rate(momentum: float, batch_size: int, full_batch: int) -> float:
    """ρ = 1 - (1-ρ_bn)^(B/B_max): small batches move the components less.

    >>> unmix_rate(0.1, 64, 64), round(unmix_rate(0.1, 1, 64), 4)
    (0.1, 0.0016)
    """
    return momentum if batch_size == full_batch else 1 - (1 - momentum) ** (batch_size / full_batch)


def first_components(mean: Tensor, var: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """K×C means m_k = μ_s + sqrt(α_0 K/(K-1)) σ_s ξ_k with ξ ~ N(0, I), and variances v_k = (1-α_0) σ_s².

    The variance of the mixture is the source's in expectation; a single component is the source itself.

    >>> mean, var = torch.zeros(2), torch.tensor([4.0, 1.0])
    >>> first_components(mean, var, 3, torch.Generator())[1].tolist()
    [[2.0, 0.5], [2.0, 0.5], [2.0, 0.5]]
    """
    if count == 1:
        return mean[None].clone(), var[None].clone()
    noise = torch.randn(count, len(mean), dtype=torch.float64, generator=generator, device="cpu")
    spread = math.sqrt(SPREAD * count / (count - 1))
    return mean + spread * var.sqrt() * noise.to(mean), (1 - SPREAD) * var.repeat(count, 1)


def unmixed(
    mean: Tensor, var: Tensor, component_means: Tensor, component_vars: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The statistics of each sample, N×C, and the components as each sample would move them, N×K×C.

    m̃_bk = (1-p_bk) m_k + p_bk μ_b and ṽ_bk likewise; μ*_b = mean_k m̃_bk; σ²*_b = mean_k ṽ_bk + var_k m̃_bk.
    Gradients flow through μ_b and σ²_b alone.

    >>> one = torch.ones(1, 2)
    >>> unmixed(3 * one, one, one, 0 * one)[0]  # a single component is replaced by the sample
    tensor([[3., 3.]])
    """
    similarity = F.cosine_similarity(mean.detach()[:, None], component_means[None], dim=2)
    p = (similarity / TEMPERATURE).softmax(dim=1)[:, :, None]
    means = (1 - p) * component_means + p * mean[:, None]
    variances = (1 - p) * component_vars + p * var[:, None]
    between, center = torch.var_mean(means, 1, correction=0)
    return center, variances.mean(dim=1) + between, means.detach(), variances.detach()


class UnMixBN(AffineOnly):
    """Normalise each sample with its unmixed statistics; in `updating` mode the components follow the samples.

    An updating pass normalises with the components as they were before: it gives the result of one that does not
    update. BatchNorm1d, and feature maps of one position, have no instance statistics: they keep those of the source.

    >>> layer = UnMixBN(nn.BatchNorm2d(3).eval(), generator=torch.Generator().manual_seed(0), components=4)
    >>> x = torch.rand(2, 3, 4, 4)
    >>> with updating_components(layer):
    ...     y = layer(x)
    >>> y.shape, torch.equal(layer(x), y)  # the components have moved
    (torch.Size([2, 3, 4, 4]), False)
    """

    component_means: Tensor
    component_vars: Tensor

    def __init__(
        self,
        layer: BatchNorm,
        *,
        generator: torch.Generator,
        components: int = 16,
        batch_size: int = 64,
        full_batch: int = 64,
    ) -> None:
        if layer.running_mean is None:
            lost = "a BatchNorm layer has no running statistics (track_running_stats=False)"
            raise UnsuitableModel(f"UnMix-TNS needs the source statistics, but {lost}. Use norm='batch' or 'bn'.")
        super().__init__(layer)
        momentum = MOMENTUM if layer.momentum is None else layer.momentum
        self.rate = unmix_rate(momentum, batch_size, full_batch)
        means, variances = first_components(self.mean, self.var, components, generator)
        self.register_buffer("component_means", means)
        self.register_buffer("component_vars", variances)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of the mixture."""
        between, mean = torch.var_mean(self.component_means, 0, correction=0)
        return mean, self.component_vars.mean(dim=0) + between

    def set_statistics(self, mean: Tensor, var: Tensor) -> None:
        """Keep the components, which a mean and a variance do not determine."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each sample on its own."""
        shape = (-1, x.shape[1], *[1] * (x.ndim - 2))
        if isinstance(self.layer, nn.BatchNorm1d) or math.prod(x.shape[2:]) == 1:
            return self.normalize(x, self.mean.view(shape), self.var.view(shape))
        values = x.to(self.component_means.dtype)
        mean, var, means, variances = unmixed(*instance_moments(values), self.component_means, self.component_vars)
        if self.updating:
            self._follow(means, variances)
        scale = torch.rsqrt(var + self.layer.eps)
        normal = torch.addcmul((-mean * scale).view(shape), values, scale.view(shape))
        return self.by_layer(normal.to(x.dtype))

    @torch.no_grad()
    def _follow(self, means: Tensor, variances: Tensor) -> None:
        """m_k <- m_k + ρ mean_b (m̃_bk - m_k), and v_k likewise, in place."""
        self.component_means.lerp_(means.mean(dim=0), self.rate)
        self.component_vars.lerp_(variances.mean(dim=0), self.rate)


@contextmanager
def updating_components(network: nn.Module) -> Iterator[None]:
    """Let the components of every `UnMixBN` of a network follow the samples in the forward passes inside."""
    layers = [module for module in network.modules() if isinstance(module, UnMixBN)]
    for layer in layers:
        layer.updating = True
    try:
        yield
    finally:
        for layer in layers:
            layer.updating = False
