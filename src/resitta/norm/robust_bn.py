"""RBN, RoTTA's robust batch normalisation: an EMA of batch statistics, without alignment to the source."""

from torch import Tensor

from resitta.accel.frozen_bn import Share, frozen_bn, is_replaceable
from resitta.norm.bn_layers import BatchNorm, RunningBN, batch_moments, moved_average


class RobustBN(RunningBN):
    """Normalise with (1-α) running + α batch statistics; the gradient sees the batch's share, as in RoTTA's code.

    >>> import torch
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
        if not self.updating:
            return self.by_layer(x)
        alone = self.moments is batch_moments  # the fast gradient knows of no other batches than the one at hand
        fast = alone and is_replaceable(self.layer)
        seen = x.detach() if fast else x
        mean, var, batch_mean = moved_average(seen, *self.statistics(), self.alpha, self.moments)
        self.set_statistics(mean.detach(), var.detach())
        if fast:
            return frozen_bn(self.layer, x, mean, var, Share.of_batch(x, batch_mean, self.alpha))
        return self.by_layer(self._with_gradient(x, mean, var))

    def _with_gradient(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """Return x, such that normalising it with constants has the gradient of normalising it with mean and var."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, std = mean.view(shape), (var + self.layer.eps).sqrt().view(shape)
        return ((x - mean) * (std.detach() / std) + mean.detach()).to(x.dtype)
