"""CSTU, RoTTA's category-balanced sampling with timeliness and uncertainty."""

import math

from resitta.memory.memory import Memory, Storage


class CSTU(Memory):
    """The memory of RoTTA: a class has a quota of N/C; the highest score leaves, if it is above the new one's.

    The score is 1/(1+e^(-age/N)) + H/ln C: old and uncertain samples leave. A class over its quota replaces within
    itself, one under it takes from the classes with most samples. Ties go to the last: the highest class, and in it the
    youngest sample.
    """

    def __init__(self, capacity: int, *, storage: Storage | None = None) -> None:
        super().__init__(capacity, storage=storage)
        self.reindex()

    def admit(self, label: int, entropy: float) -> int | None:
        """Find a place under the class quota."""
        own = self._of_class.get(label, {})
        if len(own) >= self.capacity / self.classes:
            return self._worse_than(entropy, [label])
        if self.size < self.capacity:
            return self.size
        most = max(map(len, self._of_class.values()))
        return self._worse_than(entropy, [some for some, samples in self._of_class.items() if len(samples) == most])

    def _worse_than(self, entropy: float, among: list[int]) -> int | None:
        """Return the most dispensable sample of some classes, if it is more so than a newcomer of that entropy."""
        now, capacity, highest = self.clock, self.capacity, math.log(self.classes)
        score, _, _, slot = max(
            [
                (1 / (1 + math.exp((birth - now) / capacity)) + uncertainty / highest, label, birth, slot)
                for label in among
                for slot, (uncertainty, birth) in self._of_class[label].items()
            ]
        )
        return slot if score > 0.5 + entropy / highest else None  # the newcomer's score

    def put(self, slot: int, label: int, entropy: float, birth: int) -> None:
        """Note the sample, and keep the index up to date."""
        if slot < self.size:
            self._unlist(slot, int(self.all_labels[slot]))
        super().put(slot, label, entropy, birth)
        self._of_class.setdefault(label, {})[slot] = entropy, birth

    def _unlist(self, slot: int, label: int) -> None:
        own = self._of_class[label]
        del own[slot]
        if not own:
            del self._of_class[label]

    def reindex(self) -> None:
        """Build the index of the classes from what is stored: Python's numbers take less time than small arrays."""
        self._of_class: dict[int, dict[int, tuple[float, int]]] = {}
        rows = zip(self.labels.tolist(), self.entropies.tolist(), self.births.tolist(), strict=False)
        for slot, (label, entropy, birth) in enumerate(rows):
            self._of_class.setdefault(label, {})[slot] = entropy, birth
