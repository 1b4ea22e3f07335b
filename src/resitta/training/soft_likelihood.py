"""The soft likelihood ratio, a loss on certainty whose gradient does not vanish, and weights of samples, as in ROID.

Marsden, Döbler, Yang: Universal Test-time Adaptation (WACV 2024).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.training.entropy import entropy

CLIP = 0.99
"""Probabilities above it have no gradient in the soft likelihood ratio."""
FLOOR = 1e-5
"""Keeps the likelihood ratio of an impossible class from a logarithm of zero."""


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """ℓ = -Σ q log(q / (1-q) + 1e-5) of each row, with q = min(p, .99).

    >>> soft_likelihood_ratio(torch.zeros(1, 2)).abs().round(decimals=4)  # a ratio of one
    tensor([0.])
    """
    q = logits.softmax(dim=1).clamp(max=CLIP)
    return -(q * (q / (1 - q) + FLOOR).log()).sum(dim=1)


def normalized(values: Tensor) -> Tensor:
    """Values moved and scaled to [0, 1]; equal ones, such as a single one, become 0.

    >>> normalized(torch.tensor([1.0, 2.0, 5.0])), normalized(torch.tensor([3.0]))
    (tensor([0.0000, 0.2500, 1.0000]), tensor([0.]))
    """
    low, high = values.aminmax()
    spread = high - low
    return (values - low) / spread.where(spread > 0, 1.0)


def sample_weights(logits: Tensor, mean_prediction: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The weights of the samples, and which are kept: those at least as diverse as the mean of the batch.

    w = exp(d e / τ) with the diversity d = 1 - cos(c̄, p) and the certainty e = -H(p), each scaled to [0, 1] over the
    batch. At least one sample is kept.

    >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> weights, kept = sample_weights(logits, torch.tensor([0.9, 0.1]), tau=1.0)
    >>> kept.tolist(), weights.tolist()
    ([False, True], [1.0, 1.0])
    """
    diversity = normalized(1 - F.cosine_similarity(mean_prediction[None], logits.softmax(dim=1), dim=1))
    certainty = normalized(-entropy(logits))
    return (diversity * certainty / tau).exp(), ~(diversity < diversity.mean())


@torch.no_grad()
def follow(mean_prediction: Tensor, logits: Tensor, beta: float) -> None:
    """c̄ <- β c̄ + (1-β) mean p, in place; predictions that are not finite are left out.

    >>> mean = torch.tensor([0.5, 0.5])
    >>> follow(mean, torch.tensor([[9.0, -9.0]]), beta=0.9)
    >>> mean
    tensor([0.5500, 0.4500])
    """
    mean = logits.softmax(dim=1).mean(dim=0).to(mean_prediction.dtype)
    mean_prediction.lerp_(mean.where(mean.isfinite().all(), mean_prediction), 1 - beta)
