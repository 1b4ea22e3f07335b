"""The soft likelihood ratio, a loss on certainty whose gradient does not vanish (Marsden et al., WACV 2024)."""

from torch import Tensor

CLIP = 0.99
"""Probabilities above it have no gradient in the soft likelihood ratio."""
FLOOR = 1e-5
"""Keeps the likelihood ratio of an impossible class from a logarithm of zero."""


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """ℓ = -Σ q log(q / (1-q) + 1e-5) of each row, with q = min(p, .99).

    >>> import torch
    >>> soft_likelihood_ratio(torch.zeros(1, 2)).abs().round(decimals=4)  # a ratio of one
    tensor([0.])
    """
    q = logits.softmax(dim=1).clamp(max=CLIP)
    return -(q * (q / (1 - q) + FLOOR).log()).sum(dim=1)


def normalized(values: Tensor) -> Tensor:
    """Values moved and scaled to [0, 1]; equal ones, such as a single one, become 0.

    >>> import torch
    >>> normalized(torch.tensor([1.0, 2.0, 5.0])), normalized(torch.tensor([3.0]))
    (tensor([0.0000, 0.2500, 1.0000]), tensor([0.]))
    """
    low, high = values.aminmax()
    spread = high - low
    return (values - low) / spread.where(spread > 0, 1.0)
