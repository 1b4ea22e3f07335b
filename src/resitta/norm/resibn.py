"""ResiBN, resilient batch normalisation: target statistics that follow the stream and are pulled toward the source.

The target statistics are the running statistics of the caller's own layer. An updating pass moves them towards the
batch, (μ_t, σ²_t) <- (1-ν_b)(μ_t, σ²_t) + ν_b(μ_b, σ²_b), and normalises with the result. A soft-alignment step
descends the squared Wasserstein distance W₂² = (μ_t-μ_s)² + (σ_t-σ_s)² to the source statistics with rate η.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from resitta.accel.frozen_bn import frozen_bn, is_replaceable
from resitta.norm.bn_layers import BatchNorm, RunningBN, moved_average


def soft_align(mean: Tensor, var: Tensor, source_mean: Tensor, source_var: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """One descent step on W₂², in μ and in σ (not σ²; an ε in the root would inflate nearly dead channels).

    >>> mean, var, zero, one = torch.tensor(1.0), torch.tensor(4.0), torch.tensor(0.0), torch.tensor(1.0)
    >>> soft_align(mean, var, zero, one, eta=0.25)
    (tensor(0.5000), tensor(2.2500))
    """
    std, source_std = var.sqrt(), source_var.sqrt()
    mean = mean - 2 * eta * (mean - source_mean)
    std = std - 2 * eta * (std - source_std)
    return mean, std.square()


def wasserstein(mean: Tensor, var: Tensor, source_mean: Tensor, source_var: Tensor) -> Tensor:
    """W₂ between two Gaussians with independent channels.

    >>> wasserstein(torch.tensor([3.0]), torch.tensor([25.0]), torch.tensor([0.0]), torch.tensor([1.0]))
    tensor(5.)
    """
    squares = (mean - source_mean).square() + (var.sqrt() - source_var.sqrt()).square()
    return squares.sum().sqrt()


class ResiBN(RunningBN):
    """Resilient batch normalisation around one BatchNorm layer.

    >>> layer = ResiBN(torch.nn.BatchNorm1d(1).eval(), nu_b=0.5)
    >>> layer.updating = True
    >>> _ = layer(torch.tensor([[2.0], [2.0]]))
    >>> layer.layer.running_mean, layer.layer.running_var
    (tensor([1.]), tensor([0.5000]))
    >>> align([layer], eta=0.25)
    >>> layer.layer.running_mean
    tensor([0.5000])
    """

    source_mean: Tensor
    source_var: Tensor

    def __init__(self, layer: BatchNorm, nu_b: float) -> None:
        super().__init__(layer)
        self.nu_b = nu_b
        mean, var = self.statistics()
        self.register_buffer("source_mean", mean.clone())
        self.register_buffer("source_var", var.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with the target statistics, moved towards the batch first when updating."""
        if self.updating:
            self._follow(x.detach())
        if x.is_cuda and is_replaceable(self.layer):
            return frozen_bn(self.layer, x, *self.statistics())
        return self.by_layer(x)

    def _follow(self, x: Tensor) -> None:
        """EMA toward the batch, in new tensors: an autograd graph may hold the old ones."""
        mean, var, _ = moved_average(x, *self.statistics(), self.nu_b, self.moments)
        self.set_statistics(mean, var)


@torch.no_grad()
def align(layers: Sequence[ResiBN], eta: float) -> None:
    """Soft-align the target statistics of all layers with the source, in one operation and in place."""
    if not layers:
        return
    targets = [layer.statistics() for layer in layers]
    sources = [(layer.source_mean, layer.source_var) for layer in layers]
    (means, variances), source = zip(*targets, strict=True), zip(*sources, strict=True)
    source_mean, source_var = map(torch.cat, source)
    aligned = soft_align(torch.cat(means), torch.cat(variances), source_mean, source_var, eta)
    sizes = [len(mean) for mean in means]
    for places, values in zip((means, variances), aligned, strict=True):
        torch._foreach_copy_(list(places), torch.split(values, sizes))


@torch.no_grad()
def return_to_source(layers: Sequence[ResiBN]) -> None:
    """Reset the statistics of all layers to the source, in place."""
    if layers:
        targets = [tensor for layer in layers for tensor in layer.statistics()]
        torch._foreach_copy_(targets, [tensor for layer in layers for tensor in (layer.source_mean, layer.source_var)])
