"""What happened to a service, for people: a short list of dated sentences."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

Kind = Literal["control", "guard", "failure"]


@dataclass(frozen=True)
class Event:
    """One thing that happened, at a time in seconds since 1970."""

    time: float
    kind: Kind
    text: str


class Events:
    """The last events. Any thread may add one.

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

    def newest(self) -> list[Event]:
        """The events, the newest first."""
        return list(self._events)[::-1]
