"""Who would leave EntroBank, kept up to date while samples come and go, so that no decision looks at every sample.

Each class keeps its samples by age and by entropy; classes with the same count keep their candidates in common heaps.
Entries of heaps are never removed when they become invalid: they are recognised as stale when they come to the top,
and a heap that is mostly stale is made anew. One step therefore costs the logarithm of the number of samples at most.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

Entry = tuple[Any, ...]
Current = list[int] | dict[int, int]
SLACK = 64
NOBODY = -1
"""The birth and the label of a sample that is not there."""


class LazyHeap:
    """A heap whose entries may become stale. Each ends with a value and a key, and counts while `current[key]` is it.

    >>> current = [7, 7]
    >>> heap = LazyHeap(current)
    >>> heap.push((0.1, 7, 0)), heap.push((0.2, 7, 1))
    (None, None)
    >>> current[0] = 8
    >>> heap.top()
    (0.2, 7, 1)
    """

    __slots__ = ("_current", "_entries", "_fresh", "_room")

    def __init__(self, current: Current) -> None:
        self._current = current
        self._entries: list[Entry] = []
        self._fresh: list[Entry] = []  # not in order yet: many become stale before anybody looks
        self._room = SLACK

    def push(self, entry: Entry) -> None:
        """Add an entry; now and then, forget the stale ones."""
        self._fresh.append(entry)
        self._room -= 1
        if self._room < 0:
            self._entries = valid(self._entries + self._fresh, self._current)
            heapq.heapify(self._entries)
            self._fresh.clear()
            self._room = SLACK + len(self._entries)

    def top(self) -> Entry | None:
        """The smallest entry that is not stale."""
        entries, current = self._entries, self._current
        if self._fresh:
            for entry in self._fresh:
                if current[entry[-1]] == entry[-2]:
                    heapq.heappush(entries, entry)
            self._fresh.clear()
        while entries:
            entry = entries[0]
            if current[entry[-1]] == entry[-2]:
                return entry
            heapq.heappop(entries)
        return None

    def pop(self) -> None:
        """Remove the top entry."""
        heapq.heappop(self._entries)


def valid(entries: Iterable[Entry], current: Current) -> list[Entry]:
    """Those that are not stale, as in a `LazyHeap`.

    >>> valid([(0.1, 7, 0), (0.2, 8, 0)], [8])
    [(0.2, 8, 0)]
    """
    return [entry for entry in entries if current[entry[-1]] == entry[-2]]


class ClassSamples:
    """The samples of one class: by age, by lowest and by highest entropy (of equals, the older first).

    Each is (entropy, birth, slot), and here as long as its slot has that birth.
    """

    __slots__ = ("_births", "_by_age", "_highest", "_lowest", "_new", "_room", "count")

    def __init__(self, births: list[int]) -> None:
        self.count = 0
        self._births = births
        self._by_age: deque[Entry] = deque()  # the oldest first, among them some that have gone
        self._new = 0  # so many at the end are in no heap yet: many go before anybody asks for entropies
        self._lowest = LazyHeap(births)
        self._highest = LazyHeap(births)
        self._room = SLACK

    def add(self, entry: Entry) -> None:
        """Take in a sample younger than all others."""
        self._by_age.append(entry)
        self._new += 1
        self._room -= 1
        if self._room < 0:
            self._new = len(valid(self._news(), self._births))
            self._by_age = deque(valid(self._by_age, self._births))
            self._room = SLACK + len(self._by_age)

    def _news(self) -> Iterable[Entry]:
        return islice(reversed(self._by_age), self._new)

    def oldest(self) -> Entry:
        """The oldest sample; there must be one."""
        births, by_age = self._births, self._by_age
        while births[by_age[0][2]] != by_age[0][1]:
            by_age.popleft()
        return by_age[0]

    def extremes(self) -> tuple[Entry, Entry]:
        """The sample of the lowest entropy, and that of the highest with its entropy negated; there must be one."""
        if self._new:
            for entry in self._news():
                entropy, birth, slot = entry
                self._lowest.push(entry)
                self._highest.push((-entropy, birth, slot))
            self._new = 0
        lowest, highest = self._lowest.top(), self._highest.top()
        assert lowest is not None
        assert highest is not None
        return lowest, highest


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

    __slots__ = (
        "_classes",
        "_count",
        "_highest",
        "_mature",
        "_of_new_entropy",
        "_oldest",
        "_versions",
        "_young",
        "arrived",
        "population",
    )

    def __init__(self, classes: dict[int, ClassSamples], versions: dict[int, int], count: int) -> None:
        self._classes, self._versions, self._count = classes, versions, count
        self._oldest = LazyHeap(versions)
        self._young = LazyHeap(versions)  # lowest entropies of classes, by birth, until they are mature
        self._mature = LazyHeap(versions)
        self._highest = LazyHeap(versions)
        self.population = 0
        """How many classes there are."""
        self.arrived: set[int] = set()
        """Classes that have come to this count, or have changed and come back to it, since anybody looked."""
        self._of_new_entropy: set[int] = set()

    def oldest(self) -> tuple[int, int]:
        """Birth and slot of the oldest sample."""
        alone = self._alone() if self.population == 1 else None
        if alone is not None:
            _, birth, slot = alone.oldest()
            return birth, slot
        self._welcome()
        entry = self._oldest.top()
        assert entry is not None  # the dominant classes have samples
        return entry[0], entry[1]

    def _alone(self) -> ClassSamples | None:
        """The samples of the only class at this count, if it has just changed: it needs no comparison with others."""
        if len(self.arrived) == 1:
            samples = self._classes[next(iter(self.arrived))]
            if samples.count == self._count:
                return samples
        return None

    def _welcome(self) -> None:
        for label in self.arrived:
            samples = self._classes[label]
            if samples.count == self._count:  # else it came and went
                _, birth, slot = samples.oldest()
                self._oldest.push((birth, slot, self._versions[label], label))
                self._of_new_entropy.add(label)
        self.arrived.clear()

    def outlook(self, mature_by: float) -> Outlook:
        """The other candidates, when those born by `mature_by` count as mature."""
        alone = self._alone() if self.population == 1 else None
        if alone is not None:
            (_, birth, slot), (negated, _, highest_slot) = alone.extremes()
            mature = birth <= mature_by
            return Outlook(slot if mature else None, math.inf if mature else birth, -negated, highest_slot)
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
            if samples.count == self._count:
                (entropy, birth, slot), highest = samples.extremes()
                version = self._versions[label]
                self._young.push((birth, entropy, slot, version, label))
                self._highest.push((*highest, version, label))
        self._of_new_entropy.clear()


class BankIndex:
    """All classes and levels. The dominant classes are those of the highest level that has any."""

    def __init__(self, capacity: int) -> None:
        self._births = [NOBODY] * capacity
        self._labels = [NOBODY] * capacity
        self._classes: dict[int, ClassSamples] = {}
        self._versions: dict[int, int] = {}
        """How often the samples of each class have changed."""
        self._levels = [Level(self._classes, self._versions, 0)]
        self._top = 0

    def put(self, slot: int, label: int, birth: int, entropy: float) -> None:
        """Enter a sample younger than all others, in the place of the one that has its slot, if any."""
        samples = self._classes.get(label) or self._new_class(label)
        if self._labels[slot] == label:  # the class keeps its count
            self._versions[label] += 1
            self._levels[samples.count].arrived.add(label)
        else:
            self.remove(slot)
            self._labels[slot] = label
            self._move(label, samples, samples.count + 1)
        self._births[slot] = birth
        samples.add((entropy, birth, slot))

    def remove(self, slot: int) -> None:
        """Let a sample go, if there is one."""
        label = self._labels[slot]
        if label != NOBODY:
            self._labels[slot] = self._births[slot] = NOBODY
            samples = self._classes[label]
            self._move(label, samples, samples.count - 1)

    def dominant(self) -> Level:
        """The samples of the dominant classes, one of which may have to leave."""
        return self._levels[self._top]

    def _new_class(self, label: int) -> ClassSamples:
        self._versions[label] = 0
        self._levels[0].population += 1
        self._classes[label] = samples = ClassSamples(self._births)
        return samples

    def _move(self, label: int, samples: ClassSamples, count: int) -> None:
        """Take a class to the level of its new count, one above or below its old one."""
        levels = self._levels
        if count == len(levels):
            levels.append(Level(self._classes, self._versions, count))
        levels[samples.count].population -= 1
        level = levels[count]
        level.population += 1
        level.arrived.add(label)
        samples.count = count
        self._versions[label] += 1
        if count > self._top or not levels[self._top].population:
            self._top = count
