"""Who would leave EntroBank, kept up to date while samples come and go, so that no decision looks at every sample.

Each class keeps its samples by age and by entropy; classes with the same count keep their candidates in common heaps.
Entries of heaps are never removed when they become invalid: they are recognised as stale when they come to the top,
and a heap that is mostly stale is made anew. One step therefore costs the logarithm of the number of samples at most.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

Entry = tuple[Any, ...]
SLACK = 64


class LazyHeap:
    """A heap whose entries may become stale; `is_stale` tells which.

    >>> gone = {1}
    >>> heap = LazyHeap(lambda entry: entry[0] in gone)
    >>> heap.push((1,)), heap.push((2,))
    (None, None)
    >>> heap.top()
    (2,)
    """

    def __init__(self, is_stale: Callable[[Entry], bool]) -> None:
        self._entries: list[Entry] = []
        self._is_stale = is_stale
        self._limit = SLACK

    def push(self, entry: Entry) -> None:
        """Add an entry; now and then, forget the stale ones."""
        entries = self._entries
        heapq.heappush(entries, entry)
        if len(entries) > self._limit:
            entries[:] = [kept for kept in entries if not self._is_stale(kept)]
            heapq.heapify(entries)
            self._limit = SLACK + 2 * len(entries)

    def top(self) -> Entry | None:
        """The smallest entry that is not stale."""
        entries, is_stale = self._entries, self._is_stale
        while entries and is_stale(entries[0]):
            heapq.heappop(entries)
        return entries[0] if entries else None

    def pop(self) -> None:
        """Remove the top entry."""
        heapq.heappop(self._entries)


class ClassSamples:
    """The samples of one class: by age, by lowest and by highest entropy (of equals, the older first)."""

    def __init__(self) -> None:
        self.by_age: OrderedDict[int, int] = OrderedDict()  # slot -> birth, the oldest first
        self.lowest = LazyHeap(self._is_gone)
        self.highest = LazyHeap(self._is_gone)
        self.version = 0

    def add(self, slot: int, birth: int, entropy: float) -> None:
        """Take in a sample younger than all others."""
        self.by_age[slot] = birth
        self.lowest.push((entropy, birth, slot))
        self.highest.push((-entropy, birth, slot))
        self.version += 1

    def remove(self, slot: int) -> None:
        """Let a sample go."""
        del self.by_age[slot]
        self.version += 1

    def _is_gone(self, entry: Entry) -> bool:
        return self.by_age.get(entry[2]) != int(entry[1])


class Outlook(NamedTuple):
    """Slots that may leave: the oldest, the over-confident (if there is one), the one of highest entropy.

    It stays true until a sample comes or goes, or until the sample born at `next_mature` becomes mature.
    """

    oldest_birth: int
    oldest: int
    overconfident: int | None
    next_mature: float
    highest_entropy: float
    highest: int


class Level:
    """The classes that have one and the same count, and the candidates among their samples."""

    def __init__(self, classes: dict[int, ClassSamples], count: int) -> None:
        self._classes, self._count = classes, count
        self._oldest = LazyHeap(self._is_stale)
        self._young = LazyHeap(self._is_stale)  # lowest entropies of classes, by birth, until they are mature
        self._mature = LazyHeap(self._is_stale)
        self._highest = LazyHeap(self._is_stale)
        self.arrivals: set[int] = set()

    def settle(self) -> None:
        """Enter the candidates of classes that have come to this count or changed."""
        for label in self.arrivals:
            samples = self._classes[label]
            lowest, highest = samples.lowest.top(), samples.highest.top()
            if len(samples.by_age) != self._count or lowest is None or highest is None:
                continue  # it came and went
            stamp = (label, samples.version)
            slot, birth = next(iter(samples.by_age.items()))
            self._oldest.push((birth, slot, *stamp))
            self._young.push((lowest[1], lowest[0], lowest[2], *stamp))
            self._highest.push((*highest, *stamp))
        self.arrivals.clear()

    def outlook(self, mature_by: float) -> Outlook:
        """The candidates, when those born by `mature_by` count as mature."""
        while (entry := self._young.top()) is not None and entry[0] <= mature_by:
            self._young.pop()
            birth, entropy, *rest = entry
            self._mature.push((entropy, birth, *rest))
        oldest, highest, sure = self._oldest.top(), self._highest.top(), self._mature.top()
        assert oldest is not None  # the dominant classes have samples
        assert highest is not None
        return Outlook(
            oldest_birth=oldest[0],
            oldest=oldest[1],
            overconfident=None if sure is None else sure[2],
            next_mature=math.inf if entry is None else entry[0],
            highest_entropy=-highest[0],
            highest=highest[2],
        )

    def _is_stale(self, entry: Entry) -> bool:
        return self._classes[entry[-2]].version != int(entry[-1])


class BankIndex:
    """All classes and levels. The dominant classes are those of the highest level that has any."""

    def __init__(self) -> None:
        self._classes: dict[int, ClassSamples] = {}
        self._levels: dict[int, Level] = {}
        self._population: dict[int, int] = {0: 0}
        self._top = 0

    def add(self, slot: int, label: int, birth: int, entropy: float) -> None:
        """Enter a sample."""
        samples = self._classes.setdefault(label, ClassSamples())
        self._leave(len(samples.by_age))
        samples.add(slot, birth, entropy)
        self._arrive(label, len(samples.by_age))

    def remove(self, slot: int, label: int) -> None:
        """Let a sample go."""
        samples = self._classes[label]
        self._leave(len(samples.by_age))
        samples.remove(slot)
        self._arrive(label, len(samples.by_age))

    def outlook(self, mature_by: float) -> Outlook:
        """Who may leave, among the samples of the dominant classes."""
        level = self._levels[self._top]
        level.settle()
        return level.outlook(mature_by)

    def _leave(self, count: int) -> None:
        if count:
            self._population[count] -= 1

    def _arrive(self, label: int, count: int) -> None:
        if count:
            self._population[count] = self._population.get(count, 0) + 1
            if count not in self._levels:
                self._levels[count] = Level(self._classes, count)
            self._levels[count].arrivals.add(label)
            self._top = max(self._top, count)
        while self._top and not self._population.get(self._top):
            self._top -= 1
