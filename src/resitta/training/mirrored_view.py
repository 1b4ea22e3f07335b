"""A second view for nothing: images mirrored left to right, if the network takes them for images of the same class.

A network trained with random mirroring predicts an image and its mirror image about equally well, and errs on different
ones: the mean of both predictions is better than either. Digits, letters and arrows lose their meaning in a mirror. The
network itself tells: it is then less certain of mirrored images, or certain of another class.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from resitta.norm.bn_layers import in_float32_at_least
from resitta.training.entropy import entropy, log_probabilities

EXPLORED = 32
"""While mirrored images do not help, one of so many images is mirrored, to find out whether they do by now."""
HORIZON = 2048
"""Over how many images evidence is averaged."""
DIVERGENCE = 0.5
"""Predictions agree if their mean Jensen-Shannon divergence is at most this share of their mean entropy."""
UNCERTAINTY = 1.2
"""Mirrored images may have a mean entropy of so many times that of the images."""


def mean_prediction(one: Tensor, other: Tensor) -> Tensor:
    """The geometric mean of two predictions, as log probabilities but for a constant in each row.

    >>> mean_prediction(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 0.0]])).diff()
    tensor([[1.]])
    """
    return (log_probabilities(one) + log_probabilities(other)) / 2


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """The Jensen-Shannon divergence of the predictions in each row, in nats: 0 if they agree, ln 2 at most.

    >>> sure = torch.tensor([[50.0, 0.0], [50.0, 0.0]])
    >>> divergence(sure, sure.flip(0)), divergence(sure, -sure)
    (tensor([0., 0.]), tensor([0.6931, 0.6931]))
    """
    mixture = torch.stack((log_probabilities(one), log_probabilities(other))).logsumexp(dim=0) - math.log(2)
    return (entropy(mixture) - (entropy(one) + entropy(other)) / 2).clamp(min=0)


class MirroredView(nn.Module):
    """Chooses which images of a batch to mirror, and tells from the predictions whether that helps.

    >>> view, logits = MirroredView(), 4 * torch.eye(4)
    >>> view.chosen(4), bool(view(logits, logits, torch.ones(4)))
    (tensor([True, True, True, True]), True)
    >>> bool(view(logits, logits.flip(0), torch.ones(4))), view.chosen(64).nonzero().flatten()
    (False, tensor([24, 56]))
    """

    evidence: Tensor
    """Sums of the entropy of images, that of mirrored images, and the divergence."""
    clock: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("evidence", torch.zeros(3))
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, to float32 instead of less: sums would lose single images."""
        return super()._apply(in_float32_at_least(fn), recurse)  # type: ignore[no-untyped-call,no-any-return]

    @property
    def helps(self) -> Tensor:
        """Whether mirrored images are predicted like images, so far."""
        plain, mirrored, apart = self.evidence.unbind()
        return (apart <= DIVERGENCE * (plain + mirrored) / 2) & (mirrored <= UNCERTAINTY * plain)

    def chosen(self, count: int) -> Tensor:
        """Which of the next images to mirror: all if that helps, otherwise one of `EXPLORED`."""
        return self.helps | ((self.clock + torch.arange(count, device=self.clock.device)) % EXPLORED == 0)

    def forward(self, plain: Tensor, mirrored: Tensor, weights: Tensor) -> Tensor:
        """Take the logits of images and of their mirror images; return whether mirroring helps.

        `weights` are 1 for mirrored images and 0 for those that do not count.
        """
        found = torch.stack((entropy(plain), entropy(mirrored), divergence(plain, mirrored))).to(self.evidence)
        sums = torch.where(weights > 0, found, 0.0).sum(dim=1)
        self.evidence.mul_((1 - 1 / HORIZON) ** len(plain)).add_(sums)
        self.clock.add_(len(plain))
        return self.helps
