"""What a fleet keeps of one stream, in memory or not."""

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.fleets.nearest import Appearance
from resitta.fleets.records import StreamStats
from resitta.method import Learner
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import Restarted
from resitta.monitor.guard.health_signs import drift, statistics
from resitta.training.network import Network

BATCH = 64
"""How many samples that waited are learned from at once, at most, unless one call brought more."""


class Waiting(NamedTuple):
    """Samples of one call to learn from, and their logits before and after the label prior; `own` ones are copies."""

    images: Tensor
    logits: Tensor
    corrected: Tensor
    own: bool = False

    def copied(self) -> "Waiting":
        """Return a copy that the caller cannot overwrite."""
        if self.own:
            return self
        return Waiting(self.images.clone(), self.logits.clone(), self.corrected.clone(), own=True)


def fit(some: list[Waiting], more: Waiting) -> bool:
    """Whether further samples fit into one batch with some."""
    count = sum(len(each.images) for each in (*some, more))
    return count <= BATCH and more.images.shape[1:] == some[0].images.shape[1:]


class Member:
    """One stream: its adapter while it is in memory, and what is known of it in any case.

    `place` is its row in the table of `OnePass`. `changed`: the adapter differs from the file.
    """

    def __init__(self, name: str, *, saved: bool = False) -> None:
        self.name = name
        self.saved = saved
        self.adapter: Adapter | None = None
        self.place = -1
        self.changed = True
        self.saved_samples = 0
        self.waiting: deque[Waiting] = deque()
        self.dropped = 0
        self.callbacks: list[Callback] = []
        self.appearance = Appearance()
        self.last = StreamStats(in_memory=False)
        self._drift: float | None = None
        self._read: Learner | None = None

    @property
    def here(self) -> Adapter:
        """The adapter of a stream in memory."""
        assert self.adapter is not None  # the fleet brings a stream back before it uses it
        return self.adapter

    def enter(self, adapter: Adapter, place: int) -> None:
        """Come into memory."""
        self.adapter, self.place, self.changed = adapter, place, not self.saved
        self.saved_samples = adapter.samples
        self.has_moved()
        adapter.add_callback(Watch(self))
        for callback in self.callbacks:
            adapter.add_callback(callback)

    def leave(self) -> int:
        """Go out of memory; return the place that becomes free."""
        self.last = self.stats(in_memory=False)
        self.adapter = None
        return self.place

    def learn(self, images: Tensor, logits: Tensor, corrected: Tensor | None = None) -> Tensor:
        """Learn from predicted samples; return the logits, corrected by the label prior unless they were before."""
        adapter = self.here
        may_update = adapter.learner.may_update(images)
        with adapter.lock:
            try:
                return adapter.learn(images, logits, corrected)
            finally:
                if may_update:
                    adapter.rollback.free()

    def catch_up(self) -> int:
        """Learn from waiting samples, as one batch of at most `BATCH`; return how many updates that made."""
        some = [self.waiting.popleft()]
        while self.waiting and fit(some, self.waiting[0]):
            some.append(self.waiting.popleft())
        before = self.here.learner.updates
        images, logits, corrected = (torch.cat(parts) for parts in list(zip(*some, strict=True))[:3])
        try:
            self.learn(images, logits, corrected)  # the label prior saw them when they were predicted
        except Exception:
            self.dropped += len(images)
            raise
        return max(0, self.here.learner.updates - before)

    def settle(self) -> None:
        """Learn from all samples that wait."""
        while self.waiting:
            self.catch_up()

    def own_waiting(self) -> None:
        """Copy waiting samples, which the caller may overwrite after the call."""
        self.waiting = deque(each.copied() for each in self.waiting)

    @property
    def waiting_samples(self) -> int:
        """How many samples wait."""
        return sum(len(entry.images) for entry in self.waiting)

    def drift(self) -> float:
        """The mean distance of the statistics from the source's, in units of the source's spread."""
        if self._drift is None:
            adapter = self.here
            self._drift = float(drift(statistics(adapter.learner, adapter.source), adapter.source.device))
        return self._drift

    def has_moved(self) -> None:
        """Note that the network differs from what was read of it."""
        self._read, self._drift = None, None

    def read_network(self) -> Network | None:
        """Return the network that predicts if it has moved since the last time, else None."""
        learner = self.here.learner
        if self._read is learner:
            return None
        self._read = learner
        return learner.exportable_network()

    def stats(self, *, in_memory: bool = True) -> StreamStats:
        """The row of a stream in memory."""
        adapter = self.here
        return StreamStats(
            in_memory=in_memory,
            samples=adapter.samples,
            updates=adapter.learner.updates,
            mean_entropy=adapter.mean_entropy,
            drift=self.drift(),
            waiting=self.waiting_samples,
            dropped=self.dropped,
        )


class Watch(Callback):
    """Notes what changes, whoever calls the adapter. A guard may undo updates in steps that make none."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.may_update, self.alarms = True, 0

    def before_step(self, adapter: Any, images: Tensor) -> None:
        """Note whether the step may change the network."""
        self.may_update = adapter.learner.may_update(images)
        self.alarms = _alarms(adapter)

    def after_step(self, adapter: Any, images: Tensor, logits: Tensor) -> None:
        """Note that it may have."""
        self.member.changed = True
        if self.may_update or _alarms(adapter) != self.alarms:
            self.member.has_moved()

    def on_event(self, adapter: Any, event: object) -> None:
        """Note that another state was loaded."""
        if isinstance(event, Restarted):
            self.member.changed = True
            self.member.has_moved()


def _alarms(adapter: Any) -> int:
    return 0 if adapter.guard is None else int(adapter.guard.totals.total())
