"""EntroBank, the entropy-driven memory bank (the paper's Algorithm 1).

When the bank is full, only samples of the dominant classes D_c (those with the highest count in the bank) can leave:
an outdated one first, else a long-persisted over-confident one, else the most uncertain one if the new sample is
more certain. Ties: the older sample goes first, then the lower slot.
"""

from bisect import bisect_left, insort
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resitta.memory.memory import Memory, Storage, random_choice

Slots = NDArray[np.int64]
Labels = NDArray[np.int64]
Ages = NDArray[np.int64]
Entropies = NDArray[np.float64]


def dominant_slots(labels: Labels) -> Slots:
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


def overconfident(slots: Slots, labels: Labels, ages: Ages, entropies: Entropies, mature_age: int) -> int | None:
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


class IndexedEntroBank(EntroBank):
    """Decides exactly as `EntroBank`, from sorted lists per class instead of a scan over all samples.

    Classes are grouped by their count, so that the dominant ones are known. Each class keeps its samples sorted by age
    and by entropy; of equal entropies the older comes first.
    """

    def __init__(self, capacity: int, **rules: Any) -> None:
        super().__init__(capacity, **rules)
        self.reindex()

    def admit(self, label: int, entropy: float) -> int | None:
        """Algorithm 1, lines 6 to 23."""
        if self.size < self.capacity:
            return self.size
        if not self.compare_uncertainty:  # the random rule needs all dominant samples anyway
            return super().admit(label, entropy)
        dominant, by_age, by_entropy = self._by_count[-1], self._by_age, self._by_entropy
        if self.forget_age is not None:
            birth, slot = min([by_age[own][0] for own in dominant])
            if self.clock - birth >= self.forget_age:
                return slot
        if self.mature_age is not None:
            lowest = [by_entropy[own][0] for own in dominant]
            mature = [entry for entry in lowest if self.clock - entry[1] >= self.mature_age]
            if mature:
                return min(mature)[2]
        highest = max([by_entropy[own][-1][0] for own in dominant])
        if entropy >= highest:
            return None
        ends = [by_entropy[own] for own in dominant if by_entropy[own][-1][0] == highest]
        return min([entries[bisect_left(entries, (highest,))] for entries in ends])[2]

    def put(self, slot: int, label: int, entropy: float, birth: int) -> None:
        """Note the sample, and keep the index up to date."""
        if slot < self.size:
            self._unlist(slot)
        super().put(slot, label, entropy, birth)
        self._list(slot, label, entropy, birth)

    def _list(self, slot: int, label: int, entropy: float, birth: int) -> None:
        ages = self._by_age.setdefault(label, [])
        self._regroup(label, len(ages), len(ages) + 1)
        ages.append((birth, slot))  # younger than all others
        insort(self._by_entropy.setdefault(label, []), (entropy, birth, slot))

    def _unlist(self, slot: int) -> None:
        label, entropy, birth = int(self.all_labels[slot]), float(self.all_entropies[slot]), int(self.births[slot])
        ages, entropies = self._by_age[label], self._by_entropy[label]
        self._regroup(label, len(ages), len(ages) - 1)
        del ages[bisect_left(ages, (birth,))], entropies[bisect_left(entropies, (entropy, birth))]
        if not ages:
            del self._by_age[label], self._by_entropy[label]

    def _regroup(self, label: int, old: int, new: int) -> None:
        """Move a class to the group of its new count; the last group is that of the dominant classes."""
        groups = self._by_count
        if new == len(groups):
            groups.append(set())
        groups[old].discard(label)
        if new:
            groups[new].add(label)
        while len(groups) > 1 and not groups[-1]:
            groups.pop()

    def reindex(self) -> None:
        """Build the index from what is stored."""
        self._by_count: list[set[int]] = [set()]
        self._by_age: dict[int, list[tuple[int, int]]] = {}
        self._by_entropy: dict[int, list[tuple[float, int, int]]] = {}
        for slot in self.births[: self.size].argsort().tolist():
            label, entropy, birth = self.all_labels[slot], self.all_entropies[slot], self.births[slot]
            self._list(slot, int(label), float(entropy), int(birth))


class RecentEntroBank(IndexedEntroBank):
    """Holds the latest samples while `diverse`: they show all classes by themselves. Otherwise it is an EntroBank.

    >>> bank = RecentEntroBank(2, generator=torch.Generator())
    >>> bank.diverse = True
    >>> bank.add(torch.rand(3, 3, 4, 4), np.array([0, 1, 1]), np.array([0.1, 0.2, 0.9]))
    >>> bank.entropies.tolist()
    [0.9, 0.2]
    """

    diverse = False

    def admit(self, label: int, entropy: float) -> int | None:
        """The place of the oldest sample, or what Algorithm 1 decides."""
        if self.diverse and self.size == self.capacity:
            return int(self.births.argmin())
        return super().admit(label, entropy)

    def get_extra_state(self) -> dict[str, Any]:
        """Return everything for `state_dict`."""
        return {**super().get_extra_state(), "diverse": self.diverse}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load everything from a `state_dict`."""
        super().set_extra_state(state)
        self.diverse = bool(state["diverse"])
