"""RBN, RoTTA's robust batch normalisation: a moving average of batch statistics, with no way back to the source."""

import torch
from torch import Tensor

from resitta.components.bn_layers import AdaptiveBN, BatchNorm


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

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Normalise with statistics that broadcast against x, then apply the layer's affine part."""
        result: Tensor = self.layer(((x - mean) * torch.rsqrt(var + self.layer.eps)).to(x.dtype))
        return result


class RobustBN(AffineOnly):
    """Normalise with (1-α) running + α batch statistics; the gradient sees the batch's share, as in RoTTA's code.

    >>> layer = RobustBN(torch.nn.BatchNorm1d(1).eval(), alpha=0.5)
    >>> layer.updating = True
    >>> _ = layer(torch.tensor([[2.0], [2.0]]))
    >>> layer.statistics()
    (tensor([1.]), tensor([0.5000]))
    """

    def __init__(self, layer: BatchNorm, alpha: float) -> None:
        super().__init__(layer)
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with the running statistics, moved towards the batch first when updating."""
        mean, var = self.mean, self.var
        if self.updating:
            batch_mean, batch_var = self.moments(x.to(mean.dtype))
            mean, var = mean.lerp(batch_mean, self.alpha), var.lerp(batch_var, self.alpha)
            self.mean, self.var = mean.detach(), var.detach()
        shape = (1, -1, *[1] * (x.ndim - 2))
        return self.normalize(x, mean.view(shape), var.view(shape))
