"""EntroBank, the entropy-driven memory bank (the paper's Algorithm 1).

When the bank is full, only samples of the dominant classes D_c (those with the highest count in the bank) can leave:
an outdated one first, else a long-persisted over-confident one, else the most uncertain one if the new sample is
more certain. Ties: the older sample goes first, then the lower slot.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from resitta.memory.memory import Memory, Storage, random_choice

Slots = NDArray[np.int64]
Ages = NDArray[np.int64]
Entropies = NDArray[np.float64]


def dominant_slots(labels: NDArray[np.int64]) -> Slots:
    """The slots whose class has the highest count: D_c.

    >>> dominant_slots(np.array([0, 1, 1, 2, 2]))
    array([1, 2, 3, 4])
    """
    counts = np.bincount(labels)
    return np.flatnonzero(counts[labels] == counts.max())


def outdated(slots: Slots, ages: Ages, forget_age: int) -> int | None:
    """The oldest of the slots that have reached the forget age: X_od.

    >>> outdated(np.array([0, 1, 2]), np.array([5, 9, 2]), forget_age=5)
    1
    """
    return _first(slots[ages[slots] >= forget_age], ages, key=np.zeros(len(ages)))


def overconfident(
    slots: Slots, labels: NDArray[np.int64], ages: Ages, entropies: Entropies, mature_age: int
) -> int | None:
    """The least uncertain of the mature slots that are the least uncertain of their own class: X_oc.

    >>> labels, ages, entropies = np.array([0, 0, 1, 1]), np.array([9, 1, 9, 9]), np.array([0.2, 0.1, 0.4, 0.3])
    >>> overconfident(np.arange(4), labels, ages, entropies, mature_age=5)  # slot 0 is not its class's lowest
    3
    """
    lowest = np.full(labels.max() + 1, np.inf)
    np.minimum.at(lowest, labels, entropies)
    mature = slots[(ages[slots] >= mature_age) & (entropies[slots] == lowest[labels[slots]])]
    return _first(mature, ages, key=entropies)


def most_uncertain(slots: Slots, ages: Ages, entropies: Entropies) -> int:
    """The slot with the highest entropy.

    >>> most_uncertain(np.array([0, 2]), np.array([1, 2, 3]), np.array([0.5, 0.9, 0.5]))  # a tie: the older goes
    2
    """
    slot = _first(slots, ages, key=-entropies)
    assert slot is not None  # a full bank has dominant classes
    return slot


def _first(slots: Slots, ages: Ages, key: NDArray[np.float64]) -> int | None:
    """The slot with the smallest key; among equals the oldest, then the lowest."""
    order = np.lexsort((slots, -ages[slots], key[slots]))
    return int(slots[order[0]]) if len(slots) else None


class EntroBank(Memory):
    """The bank of ResiTTA. Each of the three rules can be switched off, as in the paper's ablation.

    Without the uncertainty rule a new sample always enters and a random one of the dominant classes leaves.

    >>> bank = EntroBank(2, generator=torch.Generator())
    >>> bank.add(torch.rand(3, 3, 4, 4), np.array([0, 0, 1]), np.array([0.9, 0.5, 0.7]))
    >>> sorted(bank.entropies.tolist())  # 0.9 was the most uncertain of class 0
    [0.5, 0.7]
    """

    def __init__(
        self,
        capacity: int,
        *,
        generator: torch.Generator,
        forget_age: int = 1000,
        mature_age: int = 200,
        drop_outdated: bool = True,
        drop_overconfident: bool = True,
        compare_uncertainty: bool = True,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(capacity, storage=storage)
        self.generator = generator
        self.forget_age = forget_age if drop_outdated else None
        self.mature_age = mature_age if drop_overconfident else None
        self.compare_uncertainty = compare_uncertainty

    def admit(self, label: int, entropy: float) -> int | None:
        """Algorithm 1, lines 6 to 23; the new sample's class does not matter, only what is in the bank."""
        if self.size < self.capacity:
            return self.size
        labels, ages, entropies = self.labels, self.ages, self.entropies
        slots = dominant_slots(labels)
        slot = None
        if self.forget_age is not None:
            slot = outdated(slots, ages, self.forget_age)
        if slot is None and self.mature_age is not None:
            slot = overconfident(slots, labels, ages, entropies, self.mature_age)
        if slot is not None:
            return slot
        if not self.compare_uncertainty:
            return random_choice(slots, self.generator)
        slot = most_uncertain(slots, ages, entropies)
        return slot if entropy < entropies[slot] else None
