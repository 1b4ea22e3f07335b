"""The samples that one update learns from: those of this process, or of several processes together."""

from torch import Tensor

from resitta.norm.moments import batch_moments
from resitta.training.optimizer import Gradients


class LocalReduction:
    """One process alone. `resitta.distributed.group.Group` answers the same four questions for several processes."""

    def begin(self, samples: Tensor) -> Tensor | None:
        """Return the images this process computes with in an update, or None if there is nothing to learn from."""
        return samples if len(samples) else None

    moments = staticmethod(batch_moments)

    def mean(self, losses: Tensor) -> Tensor:
        """Return the mean of the losses."""
        return losses.mean()

    def add_gradients(self, gradients: Gradients) -> Gradients:
        """Return the gradients of that mean, of which these are this process's share."""
        return gradients
