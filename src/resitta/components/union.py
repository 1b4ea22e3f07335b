"""The samples that one update learns from: those of this process, or of several processes together."""

from collections.abc import Sequence

from torch import Tensor, nn

from resitta.components.bn_layers import batch_moments


class Union:
    """One process alone. `resitta.dist.group.Group` answers the same four questions for several processes."""

    def begin(self, samples: Tensor) -> Tensor | None:
        """Return the images this process computes with in an update, or None if there is nothing to learn from."""
        return samples if len(samples) else None

    moments = staticmethod(batch_moments)

    def mean(self, losses: Tensor) -> Tensor:
        """Return the mean of the losses."""
        return losses.mean()

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Complete the gradients of that mean before a step."""
