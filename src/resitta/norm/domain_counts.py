"""As how many samples the statistics of a domain count: each class, and what was known before the domain."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.norm.bn_layers import in_float32_at_least
from resitta.norm.incremental_bn import TINY, Observation

HORIZON = 2048
"""Earlier samples fade once a domain has this many: light changes slowly, too."""


def class_weights(counts: Tensor, *, classes: int, quota: float, ceiling: float) -> Tensor:
    """As how many samples each class counts, from how many it has.

    Classes weigh alike, but for those with fewer than `quota` samples. All together weigh W samples, where

        1/W = (1/P - 1/K) / quota + 1 / min(N, ceiling)

    for N samples of K `classes`, as diverse as P classes of equal size (inverse Simpson index): a mean over all classes
    is exact but for the number of samples, one over a few of them is off by what sets classes apart. Rows beyond the
    classes are empty.

    >>> cases = torch.tensor([[0.0, 990.0], [2.0, 2.0], [500.0, 490.0]])
    >>> [round(float(class_weights(counts, classes=2, quota=4.0, ceiling=96.0).sum())) for counts in cases]
    [7, 4, 96]
    """
    samples = counts.sum()
    alike = counts.square().sum() / samples.square().clamp(min=TINY)
    lacking = (alike - 1 / classes).clamp(min=0)
    rows = counts.clamp(max=quota)
    total = 1 / (lacking / quota + 1 / samples.clamp(min=TINY, max=ceiling))
    return rows * (total / rows.sum().clamp(min=TINY))


class DomainCounts(nn.Module):
    """How many samples each row of the statistics has: rows are classes, or groups of samples.

    >>> counts = DomainCounts(2, classes=2, quota=4.0, ceiling=96.0, noise=0.8)
    >>> counts.begin(64.0)
    >>> batch = counts.add(torch.tensor([0, 0, 1]), kept=torch.tensor([True, True, False]))
    >>> counts.counts, batch.weights.sum()
    (tensor([2., 0.]), tensor(1.6000))
    """

    counts: Tensor
    strength: Tensor

    def __init__(self, rows: int, *, classes: int, quota: float, ceiling: float, noise: float) -> None:
        super().__init__()
        self.classes, self.quota, self.ceiling, self.noise = classes, quota, ceiling, noise
        self.register_buffer("counts", torch.zeros(rows))
        self.register_buffer("strength", torch.zeros(()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, to float32 instead of less: counts would stop at 256."""
        return super()._apply(in_float32_at_least(fn), recurse)  # type: ignore[no-untyped-call,no-any-return]

    def begin(self, strength: float) -> None:
        """Begin a domain; what is known before it counts as `strength` samples at most."""
        self.counts.zero_()
        self.strength.fill_(strength)

    def add(self, rows: Tensor, kept: Tensor, *, by_group: bool = False) -> Observation:
        """Count samples that are kept, each in its row; return what the rows weigh with them."""
        assignment = (F.one_hot(rows, len(self.counts)).T * kept).to(self.counts)
        fade = (HORIZON / self.counts.sum().clamp(min=TINY)).clamp(max=1)
        self.counts.mul_(fade).add_(assignment.sum(dim=1))
        if by_group:
            return Observation(assignment, fade, self.counts, self.strength, self.noise, rows)
        weights = class_weights(self.counts, classes=self.classes, quota=self.quota, ceiling=self.ceiling)
        return Observation(assignment, fade, weights, self.strength, self.noise)
