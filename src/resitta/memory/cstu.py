"""CSTU, RoTTA's category-balanced sampling with timeliness and uncertainty."""

import math

import numpy as np
from numpy.typing import NDArray

from resitta.memory.memory import Memory

Floats = NDArray[np.float64]


def cstu_score(ages: NDArray[np.int64], entropies: Floats, capacity: int, classes: int) -> Floats:
    """How dispensable samples are: 1/(1+e^(-age/N)) + H/ln C; old and uncertain ones score high.

    >>> cstu_score(np.array([0]), np.array([0.0]), 64, 10)
    array([0.5])
    """
    timeliness: Floats = 1 / (1 + np.exp(-ages / capacity))
    return timeliness + entropies / math.log(classes)


class CSTU(Memory):
    """The memory of RoTTA: a class has a quota of N/C; the highest score leaves, if it is above the new one's.

    A class over its quota replaces within itself, one under it takes from the classes with most samples.
    Ties go to the last: the highest class, and in it the youngest sample.
    """

    def admit(self, label: int, entropy: float) -> int | None:
        """Find a place under the class quota."""
        own = int((self.labels == label).sum())
        if own >= self.capacity / self.classes:
            return self._worse_than(entropy, self.labels == label)
        if self.size < self.capacity:
            return self.size
        counts = self.counts
        return self._worse_than(entropy, counts[self.labels] == counts.max())

    def _worse_than(self, entropy: float, among: NDArray[np.bool_]) -> int | None:
        """Return the most dispensable of some samples, if it is more so than a newcomer of that entropy."""
        slots = np.flatnonzero(among)
        ages = self.ages[slots]
        scores = cstu_score(ages, self.entropies[slots], self.capacity, self.classes)
        highest = scores.max()
        if highest <= 0.5 + entropy / math.log(self.classes):  # the newcomer's score
            return None
        ties = np.flatnonzero(scores == highest)
        last = ties[np.lexsort((-ages[ties], self.labels[slots[ties]]))[-1]] if len(ties) > 1 else ties[0]
        return int(slots[last])
