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

    __slots__ = ("_entries", "_fresh", "_is_stale", "_room")

    def __init__(self, is_stale: Callable[[Entry], bool]) -> None:
        self._entries: list[Entry] = []
        self._fresh: list[Entry] = []  # not in order yet: many become stale before anybody looks
        self._is_stale = is_stale
        self._room = SLACK

    def push(self, entry: Entry) -> None:
        """Add an entry; now and then, forget the stale ones."""
        self._fresh.append(entry)
        self._room -= 1
        if self._room < 0:
            self._entries = [kept for kept in (*self._entries, *self._fresh) if not self._is_stale(kept)]
            heapq.heapify(self._entries)
            self._fresh.clear()
            self._room = SLACK + len(self._entries)

    def top(self) -> Entry | None:
        """The smallest entry that is not stale."""
        entries, is_stale = self._entries, self._is_stale
        if self._fresh:
            for entry in self._fresh:
                if not is_stale(entry):
                    heapq.heappush(entries, entry)
            self._fresh.clear()
        while entries and is_stale(entries[0]):
            heapq.heappop(entries)
        return entries[0] if entries else None

    def pop(self) -> None:
        """Remove the top entry."""
        heapq.heappop(self._entries)


class ClassSamples:
    """The samples of one class: by age, by lowest and by highest entropy (of equals, the older first)."""

    __slots__ = ("_highest", "_lowest", "_news", "_room", "by_age", "version")

    def __init__(self) -> None:
        self.by_age: OrderedDict[int, int] = OrderedDict()  # slot -> birth, the oldest first
        self._lowest = LazyHeap(self._is_gone)
        self._highest = LazyHeap(self._is_gone)
        self._news: list[Entry] = []  # in no heap yet: many go before anybody asks for entropies
        self._room = SLACK
        self.version = 0

    def add(self, slot: int, birth: int, entropy: float) -> None:
        """Take in a sample younger than all others."""
        self.by_age[slot] = birth
        self._news.append((entropy, birth, slot))
        self.version += 1
        self._room -= 1
        if self._room < 0:
            self._news = [entry for entry in self._news if not self._is_gone(entry)]
            self._room = SLACK + len(self._news)

    def remove(self, slot: int) -> None:
        """Let a sample go."""
        del self.by_age[slot]
        self.version += 1

    def extremes(self) -> tuple[Entry, Entry]:
        """(entropy, birth, slot) of the lowest entropy, (-entropy, birth, slot) of the highest."""
        for entropy, birth, slot in self._news:
            self._lowest.push((entropy, birth, slot))
            self._highest.push((-entropy, birth, slot))
        self._news.clear()
        lowest, highest = self._lowest.top(), self._highest.top()
        assert lowest is not None  # who asks knows that there are samples
        assert highest is not None
        return lowest, highest

    def _is_gone(self, entry: Entry) -> bool:
        return self.by_age.get(entry[2]) != int(entry[1])


class Outlook(NamedTuple):
    """Slots that may leave if none is outdated: the over-confident (if there is one), the one of highest entropy.

    It stays true until a sample comes or goes, or until the sample born at `next_mature` becomes mature.
    """

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
        self.arrived: set[int] = set()
        """Classes that have come to this count, or have changed and come back to it, since anybody looked."""
        self._of_new_entropy: set[int] = set()

    def oldest(self) -> tuple[int, int]:
        """Birth and slot of the oldest sample."""
        self._welcome()
        entry = self._oldest.top()
        assert entry is not None  # the dominant classes have samples
        return entry[0], entry[1]

    def _welcome(self) -> None:
        for label in self.arrived:
            samples = self._classes[label]
            if len(samples.by_age) == self._count:  # else it came and went
                slot, birth = next(iter(samples.by_age.items()))
                self._oldest.push((birth, slot, label, samples.version))
                self._of_new_entropy.add(label)
        self.arrived.clear()

    def outlook(self, mature_by: float) -> Outlook:
        """The other candidates, when those born by `mature_by` count as mature."""
        self._settle()
        while (entry := self._young.top()) is not None and entry[0] <= mature_by:
            self._young.pop()
            birth, entropy, *rest = entry
            self._mature.push((entropy, birth, *rest))
        highest, sure = self._highest.top(), self._mature.top()
        assert highest is not None
        return Outlook(
            overconfident=None if sure is None else sure[2],
            next_mature=math.inf if entry is None else entry[0],
            highest_entropy=-highest[0],
            highest=highest[2],
        )

    def _settle(self) -> None:
        self._welcome()
        for label in self._of_new_entropy:
            samples = self._classes[label]
            if len(samples.by_age) == self._count:
                (entropy, birth, slot), highest = samples.extremes()
                self._young.push((birth, entropy, slot, label, samples.version))
                self._highest.push((*highest, label, samples.version))
        self._of_new_entropy.clear()

    def _is_stale(self, entry: Entry) -> bool:
        return self._classes[entry[-2]].version != int(entry[-1])


class BankIndex:
    """All classes and levels. The dominant classes are those of the highest level that has any."""

    def __init__(self) -> None:
        self._classes: dict[int, ClassSamples] = {}
        self._levels: dict[int, Level] = {}
        self._population: dict[int, int] = {}
        self._top = 0

    def add(self, slot: int, label: int, birth: int, entropy: float) -> None:
        """Enter a sample."""
        samples = self._classes.get(label)
        if samples is None:
            samples = self._classes[label] = ClassSamples()
        samples.add(slot, birth, entropy)
        count = len(samples.by_age)
        self._move(label, count - 1, count)

    def remove(self, slot: int, label: int) -> None:
        """Let a sample go."""
        samples = self._classes[label]
        samples.remove(slot)
        count = len(samples.by_age)
        self._move(label, count + 1, count)

    def dominant(self) -> Level:
        """The samples of the dominant classes, one of which may have to leave."""
        return self._levels[self._top]

    def _move(self, label: int, old: int, new: int) -> None:
        """Take a class from the level of its old count to that of its new one."""
        population = self._population
        population[old] = population.get(old, 1) - 1
        population[new] = population.get(new, 0) + 1
        if new:
            level = self._levels.get(new)
            if level is None:
                level = self._levels[new] = Level(self._classes, new)
            level.arrived.add(label)
            self._top = max(self._top, new)
        while self._top and not population[self._top]:
            self._top -= 1
