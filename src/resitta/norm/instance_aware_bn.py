"""IABN, NOTE's instance-aware batch normalisation: each sample's own statistics where they differ significantly."""

import math

import torch
from torch import Tensor

from resitta.norm.bn_layers import AdaptiveBN, BatchNorm


def soft_shrink(x: Tensor, threshold: Tensor) -> Tensor:
    """Move x towards zero by the threshold, and not past it.

    >>> soft_shrink(torch.tensor([-3.0, 0.5, 2.0]), torch.tensor(1.0))
    tensor([-2.,  0.,  1.])
    """
    return torch.relu(x - threshold) - torch.relu(-x - threshold)


class AffineOnly(AdaptiveBN):
    """A wrapper that normalises by itself and leaves the caller's layer the affine part.

    The layer gets mean 0 and variance 1-ε, with which its own forward pass divides by one.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, layer: BatchNorm) -> None:
        super().__init__(layer)
        mean, var = layer.running_mean, layer.running_var
        assert mean is not None  # the adapter refuses models without running statistics
        assert var is not None
        self.register_buffer("mean", mean)
        self.register_buffer("var", var)
        layer.running_mean, layer.running_var = torch.zeros_like(mean), torch.full_like(var, 1 - layer.eps)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the running mean and variance."""
        return self.mean, self.var

    def set_statistics(self, mean: Tensor, var: Tensor) -> None:
        """Use these tensors as running statistics."""
        self.mean, self.var = mean, var

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalise with statistics that broadcast against x, then apply the layer's affine part."""
        return self.by_layer(((x - mean) * torch.rsqrt(var + self.layer.eps)).to(x.dtype))


class InstanceAwareBN(AffineOnly):
    """Correct the running statistics by a sample's own, beyond k standard errors of those.

    s_μ = sqrt((σ²+ε)/L) and s_σ² = (σ²+ε)·sqrt(2/(L-1)) are the standard errors of an instance's mean and variance
    over its L positions. While updating, the batch's statistics take the place of the running ones and the running
    ones follow with the momentum. A layer without positions (L = 1) has no instance statistics and uses those alone.
    """

    def __init__(self, layer: BatchNorm, k: float, momentum: float) -> None:
        super().__init__(layer)
        self.k = k
        self.momentum = momentum

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each sample with its corrected statistics."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, var = self._batch(x) if self.updating and x.numel() > x.shape[1] else self.statistics()
        mean, var = mean.view(shape), var.view(shape)
        if math.prod(x.shape[2:]) > 1:
            mean, var = self._corrected(x, mean, var)
        return self.normalize(x, mean, var)

    def _batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        var, mean = torch.var_mean(x.to(self.mean.dtype), axes, correction=1)
        old_mean, old_var = self.statistics()
        self.set_statistics(old_mean.lerp(mean.detach(), self.momentum), old_var.lerp(var.detach(), self.momentum))
        return mean, var

    def _corrected(self, x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        positions = math.prod(x.shape[2:])
        values, axes = x.to(self.mean.dtype), list(range(2, x.ndim))
        instance_var, instance_mean = torch.var_mean(values, axes, correction=1, keepdim=True)
        spread = var + self.layer.eps
        mean_error = torch.sqrt(spread / positions)
        var_error = spread * math.sqrt(2 / (positions - 1))
        mean = mean + soft_shrink(instance_mean - mean, self.k * mean_error)
        var = var + soft_shrink(instance_var - var, self.k * var_error)
        return mean, torch.relu(var)
