"""Orders of the images of one domain in a stream. Each function returns indices into the labels."""

import numpy as np
from numpy.typing import NDArray

from resitta import names
from resitta.errors import BadSetting

Indices = NDArray[np.int64]
WithinSlot = names.WithinSlot


def shuffled(labels: Indices, rng: np.random.Generator) -> Indices:
    """i.i.d.: a random permutation.

    >>> sorted(shuffled(np.array([5, 5, 7]), np.random.default_rng(0)).tolist())
    [0, 1, 2]
    """
    return rng.permutation(len(labels))


def label_sorted(labels: Indices) -> Indices:
    """Class after class; a stable sort by label.

    >>> label_sorted(np.array([1, 0, 1])).tolist()
    [1, 0, 2]
    """
    return np.argsort(labels, kind="stable")


def dirichlet(
    labels: Indices,
    rng: np.random.Generator,
    *,
    delta: float = 0.1,
    slots: int | None = None,
    within_slot: WithinSlot = "blocks",
) -> Indices:
    """Temporally correlated (PTTA): each class spreads over time slots by π_c ~ Dir(δ, ..., δ).

    A small δ puts a class into few slots, a large one approaches `shuffled`. By default there are as many slots as
    classes. Inside a slot the classes are blocks in random order, or all samples are shuffled.

    >>> order = dirichlet(np.arange(1000) % 10, np.random.default_rng(0))
    >>> sorted(order.tolist()) == list(range(1000))
    True
    """
    if not delta > 0:
        raise BadSetting(f"delta must be > 0, found {delta}")
    classes = np.unique(labels)
    slots = slots or len(classes)
    shares = rng.dirichlet(np.full(slots, delta), size=len(classes))
    parts = [_cut(np.flatnonzero(labels == c), share) for c, share in zip(classes, shares, strict=True)]
    blocks = [[part[slot] for part in parts] for slot in range(slots)]
    return np.concatenate([_arrange(slot, within_slot, rng) for slot in blocks])


def _cut(indices: Indices, share: NDArray[np.float64]) -> list[Indices]:
    """Cut one class's samples into consecutive pieces of the given shares."""
    borders = (np.cumsum(share)[:-1] * len(indices)).astype(np.int64)
    return np.split(indices, borders)


def _arrange(blocks: list[Indices], within_slot: WithinSlot, rng: np.random.Generator) -> Indices:
    if within_slot == "shuffled":
        return rng.permutation(np.concatenate(blocks))
    return np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
