"""What a service of many streams tells of each stream, and of all together; read by other threads."""

from dataclasses import dataclass, replace
from typing import Any

from resitta.fleets import Fleet, StreamStats
from resitta.fleets.member import Member
from resitta.monitor.stats import Stats
from resitta.runtime.learn_queue import Counters, LearnQueue
from resitta.serve.learning import guard_counts


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """One stream of a fleet.

    `drift` is the mean distance of its statistics from the source's, in units of the source's spread; `waiting` images
    are to be learned from; `learning` is false while it is paused. A stream that is not `in_memory` is in the folder;
    its numbers are null until it has been in memory since the service was started.
    """

    name: str
    samples: int | None
    updates: int | None
    mean_entropy: float | None
    drift: float | None
    waiting: int
    learning: bool
    in_memory: bool


class StreamRows:
    """The latest numbers of each stream, noted by the thread that learns."""

    def __init__(self, fleet: Fleet, queue: LearnQueue) -> None:
        self.fleet, self.queue = fleet, queue
        self.pauses: dict[str, Any] = {}
        """The streams that are paused by themselves."""
        self._stats: dict[str, StreamStats] = {}
        self._guards: dict[str, dict[str, int]] = {}
        self._drift: dict[str, dict[str, float]] = {}

    def note(self, member: Member) -> None:
        """Note the numbers of a stream in memory."""
        known, now = self._stats.get(member.name), member.stats()
        if known is None or known.updates != now.updates:  # else it is where it was; it costs a millisecond or two
            self._drift[member.name] = member.here.stats.drift
        self._stats[member.name], self._guards[member.name] = now, guard_counts(member.here)

    def is_old(self, member: Member) -> bool:
        """Whether a stream in memory has other numbers by now."""
        known = self._stats.get(member.name)
        now = member.here.samples, member.waiting_samples, member.dropped
        return known is None or (known.samples, known.waiting, known.dropped) != now

    def pause(self, name: str) -> None:
        """Pause a stream until its pause is removed."""
        self.pauses[name] = pause = self.fleet[name].paused()
        pause.__enter__()

    def forget(self, name: str) -> None:
        """Forget a stream."""
        for known in (self.pauses, self._stats, self._guards, self._drift):
            known.pop(name, None)

    def listing(self) -> list[StreamRow]:
        """A row for each stream: first those that clients with the token have named, then others, by name."""
        waiting, learns = self.queue.waiting_by_stream(), not self.queue.paused
        rows = [
            self._row(member, waiting.get(member.name, 0), learning=learns and member.name not in self.pauses)
            for member in list(self.fleet.roster.members.values())
        ]
        return sorted(rows, key=lambda row: (owner(row.name) != "", row.name))

    def _row(self, member: Member, waiting: int, *, learning: bool) -> StreamRow:
        found = self._stats.get(member.name, member.last)
        return StreamRow(
            name=member.name,
            samples=found.samples,
            updates=found.updates,
            mean_entropy=found.mean_entropy,
            drift=found.drift,
            waiting=waiting + found.waiting,
            learning=learning,
            in_memory=member.adapter is not None,
        )

    def total(self) -> Stats:
        """Sums over the streams that have been in memory since the start; mean entropy of all samples, mean drift."""
        known = list(self._stats.values())
        samples = sum(row.samples or 0 for row in known)
        entropy = sum((row.samples or 0) * (row.mean_entropy or 0.0) for row in known) / max(1, samples)
        updates = sum(row.updates or 0 for row in known)
        relative = sum(row.drift or 0.0 for row in known) / max(1, len(known))
        return Stats(
            samples=samples,
            updates=updates,
            mean_entropy=entropy,
            bank=None,
            drift=self._mean_drift(),
            relative_drift=relative,
        )

    def _mean_drift(self) -> dict[str, float]:
        known = list(self._drift.values())
        return {layer: sum(drift[layer] for drift in known) / len(known) for layer in (known[0] if known else ())}

    def counters(self) -> Counters:
        """What became of the predicted images; those that wait in the fleet, or were dropped there, taught nothing."""
        counted, known = self.queue.counters, list(self._stats.values())
        waiting, dropped = sum(row.waiting for row in known), sum(row.dropped for row in known)
        learned = counted.learned - waiting - dropped
        return replace(counted, learned=learned, waiting=counted.waiting + waiting, dropped=counted.dropped + dropped)

    def guard_fired(self) -> dict[str, int]:
        """How often the guards found each reason."""
        total: dict[str, int] = {}
        for counts in list(self._guards.values()):
            for reason, count in counts.items():
                total[reason] = total.get(reason, 0) + count
        return total


def owner(name: str) -> str:
    """The pseudonym of the client that a stream belongs to; the empty one for a client with the token.

    >>> owner("2c1b9d2ac6e8/camera-3"), owner("camera-3")
    ('2c1b9d2ac6e8', '')
    """
    return name.rpartition("/")[0]


def share(name: str) -> str:
    """Whose share of the time a stream is learned in: its client's, or its own if that has the token.

    >>> share("2c1b9d2ac6e8/camera-3"), share("camera-3")
    ('2c1b9d2ac6e8', 'camera-3')
    """
    return owner(name) or name
