"""What a fleet reports: events with the name of their stream, and a row of numbers for each stream."""

from collections.abc import Callable
from dataclasses import dataclass

from resitta.monitor.events import Event


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """An event of one stream: `Updated`, `GuardFired`, … (see `resitta.events`)."""

    stream: str
    event: Event


StreamEventHandler = Callable[[StreamEvent], None]


@dataclass(frozen=True, kw_only=True)
class StreamStats:
    """One row of `fleet.stats`.

    `in_memory` is false for a stream that lies in the folder; the numbers are then those it had when it left memory, or
    None for one that has not been in memory since the fleet was made. `drift` is the mean distance of its statistics
    from the source's, in units of the source's spread. `waiting` samples are to be learned from when the stream has its
    turn, `dropped` ones were predicted but not learned from: too many were waiting, or learning from them failed.
    """

    in_memory: bool
    samples: int | None = None
    updates: int | None = None
    mean_entropy: float | None = None
    drift: float | None = None
    waiting: int = 0
    dropped: int = 0
