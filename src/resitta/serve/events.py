"""What happened to a service, for people: a short list of dated sentences."""

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
class Event:
    """One thing that happened, at a time in seconds since 1970."""

    time: float
    kind: Kind
    text: str


class Events(Callback):
    """The last events. Any thread may add one; as a callback it adds what a guard does.

    >>> events = Events()
    >>> events.add("control", "paused")
    >>> [event.text for event in events.newest()]
    ['paused']
    """

    def __init__(self, keep: int = 100) -> None:
        self._events: deque[Event] = deque(maxlen=keep)

    def add(self, kind: Kind, text: str) -> None:
        """Note that something happened now."""
        self._events.append(Event(time.time(), kind, text))

    def on_event(self, adapter: "Adapter", event: object) -> None:
        """Note that a guard of the adapter has fired, and that its reason has ended."""
        if isinstance(event, GuardFired):
            self.add("guard", _sentence(event))
        if isinstance(event, GuardEnded):
            found = f"{event.found} {'images' if event.reason == 'unknown' else 'steps'} in {event.lasted} samples"
            self.add("guard", f"{event.reason} has ended: {found}")

    def newest(self) -> list[Event]:
        """The events, the newest first."""
        return list(self._events)[::-1]


def _sentence(fired: GuardFired) -> str:
    if fired.reason == "unknown":
        return f"{fired.value:.0f} images looked like nothing known and did not enter the memory"
    return f"{fired.reason} is {fired.value:.4g}, allowed is {fired.bound:.4g}: {fired.action}"
