"""Which samples an entropy step learns from, and how much: the core that ETA, EATA, SAR, DeYO and RDumb share.

Everything is a masked mean, so that a step never waits for the device.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.training.come import LOSSES, Loss
from resitta.training.entropy import entropy
from resitta.training.network import Network


def highest_entropy(logits: Tensor, margin: float) -> float:
    """E = margin · ln C."""
    return margin * math.log(logits.shape[1])


def masked_mean(values: Tensor, kept: Tensor) -> Tensor:
    """The mean of the values that are kept; zero, and without gradient, if none is.

    A value that is not finite spoils it, kept or not: its gradient would not be zero.

    >>> masked_mean(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([True, False, True]))
    tensor(3.5000)
    """
    return (values * kept).sum() / kept.sum().clamp(min=1)


def certainty_weights(entropies: Tensor, highest: float) -> Tensor:
    """w = exp(E0 - H), without gradient: a certain sample weighs more.

    >>> certainty_weights(torch.tensor([0.0, 1.0]), 1.0)
    tensor([2.7183, 1.0000])
    """
    return torch.exp(highest - entropies.detach())


def moved_mean(mean: Tensor, probabilities: Tensor, kept: Tensor, rate: float = 0.1) -> Tensor:
    """p̄ <- (1-r) p̄ + r mean of the kept rows; their mean if p̄ is still zero; p̄ if no row is kept.

    >>> rows, both = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([True, True])
    >>> moved_mean(torch.zeros(2), rows, both), moved_mean(torch.tensor([1.0, 0.0]), rows, both)
    (tensor([0.5000, 0.5000]), tensor([0.9500, 0.0500]))
    """
    found = probabilities.where(kept[:, None], 0.0).sum(dim=0) / kept.sum().clamp(min=1)
    moved = torch.where(mean.any(), (1 - rate) * mean + rate * found, found)
    return torch.where(kept.any(), moved, mean)


class EntropyFilter(nn.Module):
    """Samples that are certain (H < margin · ln C) and not redundant (|cos(p̄, p)| < ε), and their weighted loss.

    p̄ is a running mean of the probabilities of kept samples, zero before the first; then no sample is redundant.
    """

    mean: Tensor

    def __init__(self, network: Network, *, margin: float, epsilon: float, loss: Loss = "entropy") -> None:
        super().__init__()
        self.margin, self.epsilon, self.loss = margin, epsilon, loss
        precision = torch.promote_types(network.dtype, torch.float32)
        self.register_buffer("mean", torch.zeros(network.classes, dtype=precision, device=network.device))

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, mean over kept samples of exp(E0 - H) H, and whether any is kept; move p̄."""
        entropies, highest = entropy(logits), highest_entropy(logits, self.margin)
        kept = self.keep(logits.detach(), entropies.detach() < highest)
        losses = entropies if self.loss == "entropy" else LOSSES[self.loss](logits)
        return masked_mean(certainty_weights(entropies, highest) * losses, kept), kept.any()

    @torch.no_grad()
    def keep(self, logits: Tensor, reliable: Tensor) -> Tensor:
        """Return which of the reliable samples are not redundant, and move p̄."""
        probabilities = logits.to(self.mean.dtype).softmax(dim=1)
        alike = F.cosine_similarity(self.mean[None], probabilities).abs()  # 0 while p̄ is zero
        kept = reliable & (alike < self.epsilon)
        self.mean.copy_(moved_mean(self.mean, probabilities, kept))
        return kept

    @torch.no_grad()
    def forget(self) -> None:
        """Begin without a running mean again."""
        self.mean.zero_()
