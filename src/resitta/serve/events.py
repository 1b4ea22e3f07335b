"""The event log of a service: dated sentences for its live page."""

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from resitta.monitor.callbacks import Callback
from resitta.monitor.events import GuardEnded, GuardFired

if TYPE_CHECKING:
    from resitta.adapter import Adapter

Kind = Literal["control", "guard", "failure"]


@dataclass(frozen=True)
class LogEntry:
    """One entry of the log; `time` is in seconds since 1970."""

    time: float
    kind: Kind
    text: str


class Events(Callback):
    """The latest entries. Thread-safe; as a callback it logs what the guard does.

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

    def on_event(self, adapter: "Adapter", event: object) -> None:
        """Log that a guard fired, and that its reason ended."""
        if isinstance(event, GuardFired):
            self.add("guard", _sentence(event))
        if isinstance(event, GuardEnded):
            found = f"{event.found} {'images' if event.reason == 'unknown' else 'steps'} in {event.lasted} samples"
            self.add("guard", f"{event.reason} has ended: {found}")

    def newest(self) -> list[LogEntry]:
        """Return the entries, the newest first."""
        return list(self._events)[::-1]


def _sentence(fired: GuardFired) -> str:
    if fired.reason == "unknown":
        return f"{fired.value:.0f} images looked like nothing known and did not enter the memory"
    return f"{fired.reason} is {fired.value:.4g}, allowed is {fired.bound:.4g}: {fired.action}"
