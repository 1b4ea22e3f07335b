"""Saves the streams of a fleet while they change, each by itself."""

import time
from collections import OrderedDict

from resitta.fleets import Fleet
from resitta.serve.events import Events
from resitta.serve.storage import SaveFailures

AT_ONCE = 0.1
"""Seconds of saving at once; between, streams learn."""


class StreamSaver:
    """Saves a stream `every` so many seconds while it changes. For the thread that learns.

    >>> import tempfile, torch, resitta
    >>> from resitta.conformance import tiny_network
    >>> fleet = resitta.fleet(tiny_network(), "resitta", folder=tempfile.mkdtemp(), autosave=None)
    >>> saver, _ = StreamSaver(fleet, Events(), every=0.0), fleet["gate"](torch.rand(2, 3, 8, 8))
    >>> saver.note("gate")
    >>> saver.save_due()
    >>> list(fleet.files.names())
    ['gate']
    """

    def __init__(self, fleet: Fleet, events: Events, *, every: float) -> None:
        self.fleet = fleet
        self.every = every
        self.failures = SaveFailures(events)
        self._changed: OrderedDict[str, float] = OrderedDict()  # since when, the oldest first

    def note(self, name: str) -> None:
        """Note that a stream has changed."""
        self._changed.setdefault(name, time.monotonic())

    def save_due(self) -> None:
        """Save streams that have waited long enough; one that cannot be saved waits as long again."""
        began = now = time.monotonic()
        while self._changed and next(iter(self._changed.values())) + self.every <= now < began + AT_ONCE:
            name, _ = self._changed.popitem(last=False)
            try:
                self.save(name)
                self.failures.end(f"stream {name} saved")
            except Exception as error:
                self.failures.add(error)
                self.note(name)
            now = time.monotonic()

    def save(self, name: str) -> None:
        """Save a stream now, if it has changed."""
        member = self.fleet.roster.members.get(name)
        if member is not None and member.adapter is not None:
            self.fleet.roster.save(member)
        self._changed.pop(name, None)

    def save_all(self) -> None:
        """Save every stream that has changed."""
        self.fleet.save()
        self._changed.clear()
