"""COME: the entropy of an opinion that keeps some belief for "I do not know" (conservatively minimise entropy)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from resitta.training.entropy import entropy

Loss = Literal["entropy", "come", "come1000"]
"""What an entropy method minimises: the entropy, or COME's with the number of classes or its authors' 1000 as K."""


def come(logits: Tensor, mass: float | None = None) -> Tensor:
    """The entropy of [b, u] of each row, b = e^z / (Σ e^z + K) and u = K / (Σ e^z + K), K the number of classes.

    [b, u] is the softmax of the logits with ln K beside them, so nothing overflows. Only the direction of the logits
    has a gradient: their norm is kept.

    >>> come(torch.tensor([[0.0, 0.0]])).exp()  # b = 1/4, 1/4, u = 1/2
    tensor([2.8284])
    """
    norms = logits.where(logits.isfinite(), 0.0).norm(dim=1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
    directed = logits * (norms.detach() / norms)
    unknown = directed.new_full((len(logits), 1), math.log(mass or logits.shape[1]))
    return entropy(torch.cat((directed, unknown), dim=1))


LOSSES: dict[Loss, Callable[[Tensor], Tensor]] = {
    "entropy": entropy,
    "come": come,
    "come1000": partial(come, mass=1000),
}
