"""Prior correction: weigh the predictions of a batch by its own mean prediction (Marsden et al., WACV 2024).

It uses the order of the stream: it helps where the labels of a batch are correlated, and hurts a little where not.
"""

from typing import Literal

import torch
from torch import Tensor

from resitta.training.entropy import log_probabilities

PriorCorrection = Literal["logits", "probability", "none"]


def smoothed_prior(probabilities: Tensor) -> Tensor:
    """π̃ = (π + s) / (1 + s C) with π the mean over the batch and s = max(1/N, 1/C) / max π.

    >>> smoothed_prior(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))  # s = 1/2
    tensor([0.7500, 0.2500])
    """
    count, classes = probabilities.shape
    prior = probabilities.mean(dim=0)
    smoothing = max(1 / count, 1 / classes) / prior.max()
    return (prior + smoothing) / (1 + smoothing * classes)


def prior_corrected(logits: Tensor, kind: PriorCorrection) -> Tensor:
    """Return the logits of a batch, weighed by its prior.

    "probability" is the paper's: log(p π̃ / Σ p π̃). "logits" is what its authors' code computes and their numbers were
    measured with: the product of logits and prior, z π̃, which depends on the constant that is free in each row of
    logits. "none" leaves them alone.

    >>> z = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).log()
    >>> prior_corrected(z, "probability").exp()
    tensor([[0.9194, 0.0806],
            [0.4581, 0.5419]])
    >>> [prior_corrected(z + 5, kind).argmax(dim=1).tolist() for kind in ("none", "probability", "logits")]
    [[0, 1], [0, 1], [0, 0]]
    """
    if kind == "none":
        return logits
    values = logits.to(torch.promote_types(logits.dtype, torch.float32))
    prior = smoothed_prior(values.softmax(dim=1))
    if kind == "logits":
        return (values * prior).to(logits.dtype)
    return log_probabilities(log_probabilities(values) + prior.log()).to(logits.dtype)
