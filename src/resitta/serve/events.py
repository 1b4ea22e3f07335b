"""The event log of a service: entries with a time, for its live page."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from resitta.fleets.records import StreamEvent
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import DomainChanged, FellBack, GuardEnded, GuardFired, Resumed

Kind = Literal["domain", "guard", "pause", "resume", "rollback", "reset", "failure", "control"]
"""Each has a shape of its own on the charts; "control" is for everything else that was asked for."""


@dataclass(frozen=True)
class LogEntry:
    """One entry of the log; `time` is in seconds since 1970."""

    time: float
    kind: Kind
    text: str


class Events(Callback):
    """The latest entries. Thread-safe; as a callback it logs what guard and fallback do, and changes of domain.

    >>> events = Events()
    >>> events.add("control", "paused")
    >>> [event.text for event in events.newest()]
    ['paused']
    """

    def __init__(self, keep: int = 100) -> None:
        self._events: deque[LogEntry] = deque(maxlen=keep)

    def add(self, kind: Kind, text: str) -> None:
        """Add an entry, dated now."""
        self._events.append(LogEntry(time.time(), kind, text))

    def on_event(self, adapter: Any, event: object) -> None:
        """Log that a guard fired, that its reason ended, that another network answers or another domain begins."""
        if isinstance(event, DomainChanged):
            self.add("domain", f"after {event.samples:,} images another domain has begun")
        if isinstance(event, FellBack | Resumed):
            now = "the source model answers now" if isinstance(event, FellBack) else "the adapted model answers again"
            source, adapted = event.recent.source.value, event.recent.adapted.value
            right = f"{source:.0%} of {event.recent.labelled} labelled images right, the adapted model {adapted:.0%}"
            self.add("guard", f"{now}: the source model has {right}")
        if isinstance(event, GuardFired):
            text = f"{event.reason} is {event.value:.4g}, allowed is {event.bound:.4g}: {event.action}"
            if event.reason == "unknown":
                text = f"{event.value:.0f} out-of-distribution images were not added to the memory"
            self.add("guard", text)
        if isinstance(event, GuardEnded):
            found = f"{event.found} {'images' if event.reason == 'unknown' else 'steps'} in {event.lasted} samples"
            self.add("guard", f"{event.reason} has ended: {found}")

    def on_stream_event(self, report: StreamEvent) -> None:
        """Log the same of a stream, with its name."""
        its_own = Events()
        its_own.on_event(None, report.event)
        for entry in its_own._events:
            self.add(entry.kind, f"stream {report.stream}: {entry.text}")

    def newest(self) -> list[LogEntry]:
        """Return the entries, the newest first."""
        return list(self._events)[::-1]
