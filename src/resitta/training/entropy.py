"""Entropies of predictions, from logits, in nats."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.accel.cuda_graphs import CudaGraphs


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax, with log 0 (a class masked by -inf) as the lowest number, so that 0·log 0 is 0.

    >>> log_probabilities(torch.tensor([[0.0, -torch.inf]])).isfinite().all().item()
    True
    """
    return logits.log_softmax(dim=1).clamp(min=torch.finfo(logits.dtype).min)


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -Σ p log p of each row, from log_softmax: exact where p is tiny, no ε in the logarithm.

    >>> entropy(torch.zeros(1, 4)).item() == torch.tensor(4.0).log().item()
    True
    """
    log_p = log_probabilities(logits)
    return -(log_p.exp() * log_p).sum(dim=1)


def tally(logits: Tensor, totals: Tensor) -> Tensor:
    """Add the sum of the finite entropies of a batch, and how many there are, to totals of both.

    >>> tally(torch.tensor([[0.0, 0.0], [torch.nan, 0.0]]), torch.zeros(2))
    tensor([0.6931, 1.0000])
    """
    entropies = entropy(logits.float())
    finite = entropies.isfinite()
    return totals + torch.stack((entropies.where(finite, 0.0).sum(), finite.sum())).to(totals)


def labels_and_entropies(
    logits: Tensor, replay: CudaGraphs | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the predicted labels and their entropies on the host, with a single copy from the device."""
    logits = logits.detach()
    scores = replay(_scores, logits) if replay is not None and logits.is_cuda else _scores(logits)
    labels, entropies = scores.cpu().numpy()
    return labels.astype(np.int64), entropies.astype(np.float64)


def _scores(logits: Tensor) -> Tensor:
    """Labels and entropies as the two rows of one tensor."""
    return torch.stack((logits.argmax(dim=1).float(), entropy(logits.float())))
