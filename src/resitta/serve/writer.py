"""The writer: the one thread that owns the adapter, learns, and publishes what it has learned.

Nobody else touches the adapter. Others put images and tasks into its inbox, and read `published`: a copy of the
teacher that is replaced as a whole, never changed. So a prediction never waits for an update.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.adapter import Adapter
from resitta.errors import BadState
from resitta.guard.sentry import Reason
from resitta.method import Learner
from resitta.serve.events import Events, Kind
from resitta.serve.inbox import Inbox, Taken
from resitta.serve.published import Publisher, absorbs
from resitta.serve.refused import Refused
from resitta.serve.saving import Saver, not_saved
from resitta.serve.settings import Limits
from resitta.serve.shares import Shares
from resitta.serve.storage import StateFolder
from resitta.serve.voices import Voices

logger = logging.getLogger(__name__)
T = TypeVar("T")
REFRESH = 0.25
"""Seconds between two looks at the adapter's statistics, which cost too much to take after every image."""


@dataclass(frozen=True)
class RolledBack:
    """The new version, the snapshot it was made from, and the newer snapshots that could not be read."""

    version: int
    snapshot: int
    skipped: list[int]


class Writer:
    """Learns from the images in its inbox, from all clients in turn, in batches of whatever is waiting."""

    def __init__(self, adapter: Adapter, folder: StateFolder, limits: Limits, events: Events) -> None:
        self.adapter = adapter
        self.folder = folder
        self.limits = limits
        self.events = events
        self.inbox = Inbox(room=limits.learn_queue, batch=limits.learn_batch)
        self._tell_skipped(folder.recover(adapter).skipped)
        self.publisher = Publisher(adapter)
        self.published = self.publisher.publish(max(folder.versions(), default=0))
        self.saver = Saver(adapter, folder, events, every=limits.save_every, version=self.published.version)
        self.stats, self.guard_fired = adapter.stats, guard_counts(adapter)
        self.voices, self.shares = Voices(adapter, events, most=limits.clients), Shares()
        self.clients = self.voices.listing()
        adapter.watch(events)
        self._met: Learner | None = None
        self._looking_fails = self._attributing_fails = False
        self._look_due = 0.0
        self._thread = threading.Thread(target=self._run, name="resitta-writer", daemon=True)

    def start(self) -> None:
        """Begin to learn."""
        self._thread.start()

    def close(self) -> None:
        """Finish the step at work, save, and stop; images still waiting are not learned from."""
        self.inbox.close()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def failed_saves(self) -> int:
        """How many snapshots could not be written."""
        return self.saver.failed

    @property
    def muted(self) -> frozenset[str]:
        """The clients that are not learned from."""
        return self.voices.muted

    # Tasks: what others may `ask` the inbox for. All of them run in the writer's thread.

    def step(self, images: Tensor, clients: Sequence[str]) -> tuple[Tensor, int, list[bool]]:
        """Predict and learn in one call: the logits, the version they come from, and which were learned from."""
        version, before = self.published.version, self.adapter.learner.updates
        heard = np.array([not self.inbox.paused and name not in self.muted for name in clients])
        logits = self._answer(images, torch.from_numpy(heard).to(images.device), clients)
        self.inbox.record(len(images), screened=int((~heard).sum()))
        if not self.inbox.paused:
            self.voices.hear(images, logits, clients)
            self.voices.count(clients, heard)
        if self.adapter.learner.updates != before:
            self._publish()
        return logits, version, heard.tolist()

    def pause(self, reason: str = "learning paused", kind: Kind = "control") -> None:
        """Stop learning at once; predictions go on."""
        self.inbox.paused = True
        self.inbox.empty()
        self.events.add(kind, reason)

    def resume(self) -> None:
        """Learn again."""
        self.inbox.paused = False
        self.events.add("control", "learning resumed")

    def reset(self) -> int:
        """Go back to the source model, once that is saved, and return the new version."""
        self._replace(self.adapter.reset, "the reset")
        self.events.add("control", f"reset to the source model, as version {self.published.version}")
        return self.published.version

    def snapshot(self) -> int:
        """Save now and return the version saved."""
        version = self.published.version
        if (error := self.saver.save(version)) is not None:
            raise not_saved(f"version {version} could not be saved", error)
        self.events.add("control", f"version {version} saved")
        return version

    def rollback(self, version: int | None = None) -> RolledBack:
        """Go back to a snapshot, the newest that can be read unless another is named, once that is saved."""
        versions = self.folder.versions()
        wanted = versions[::-1] if version is None else [version]
        if not set(wanted) & set(versions):
            known = ", ".join(map(str, versions)) or "none yet; POST /snapshot makes one"
            raise Refused(409, f"no snapshot of version {version} to go back to; there are: {known}")
        try:
            loaded = self._replace(partial(self.folder.load_first, self.adapter, wanted), "the rollback")
        except BadState as error:
            raise Refused(409, f"no snapshot to go back to can be read: {error}") from error
        assert loaded.version is not None  # otherwise it would have raised
        self._tell_skipped(loaded.skipped)
        now = self.published.version
        self.events.add("control", f"rolled back to version {loaded.version}, as version {now}")
        return RolledBack(now, loaded.version, sorted(loaded.skipped))

    def bank(self, most: int) -> tuple[Tensor, list[int], list[int], list[float]]:
        """Copy the memory of samples: images, labels, ages and entropies, the youngest first."""
        memory = self.adapter.learner.memory()
        if memory is None or memory.size == 0:
            return torch.empty(0, 3, 1, 1), [], [], []
        order = memory.ages.argsort(kind="stable")[:most]
        images = memory.samples[order.tolist()].cpu()
        return images, memory.labels[order].tolist(), memory.ages[order].tolist(), memory.entropies[order].tolist()

    # The thread.

    def _run(self) -> None:
        while not self.inbox.closed:
            self.inbox.wait(REFRESH)
            for task in self.inbox.tasks():
                task()
            if (taken := self.inbox.take()) is not None:
                self._learn(taken)
            self._look_and_save()
        for task in self.inbox.tasks():  # asked for in the last moment
            task()
        self.saver.save(self.published.version)

    def _learn(self, taken: Taken) -> None:
        before = self.adapter.learner.updates
        try:
            heard = self._teach(taken)
            if self.adapter.learner.updates != before:
                self._publish()
        except Exception as error:  # such as memory that ran out: go on predicting from what was published
            logger.exception("learning failed and is paused")
            self.inbox.settle(skipped=len(taken.images))
            self.pause(f"learning failed and is paused: {type(error).__name__}: {error}"[:300], "failure")
            return
        self._attribute(self.adapter.learner.updates - before)
        self.voices.count(taken.clients, heard)
        self.inbox.settle(learned=int(heard.sum()), screened=int((~heard).sum()))

    def _attribute(self, updates: int) -> None:
        """Find out what clients do to each other. A failure is told once; learning does not depend on it."""
        try:
            if updates > 0:
                self.voices.attribute(updates)
        except Exception as error:
            logger.exception("the influence of clients cannot be measured, learning goes on")
            if not self._attributing_fails:
                text = f"the influence of clients cannot be measured: {type(error).__name__}: {error}"
                self.events.add("failure", text[:300])
            self._attributing_fails = True

    def _teach(self, taken: Taken) -> NDArray[np.bool_]:
        """Learn from those images of a batch that may be learned from; return which."""
        source = self.adapter.source
        images = taken.images.to(source.device, source.dtype)
        logits = self._predicted(images) if taken.logits is None else taken.logits.to(source.device)
        heard = self.voices.hear(images, logits, taken.clients)
        if heard.any():
            chosen = torch.from_numpy(heard).to(source.device)
            self._absorb(images[chosen], logits[chosen], list(compress(taken.clients, heard.tolist())))
        return heard

    def _absorb(self, images: Tensor, logits: Tensor, clients: Sequence[str]) -> None:
        """Learn from what was predicted already, where the learner can."""
        learner = self.adapter.learner
        with self._shared(clients):
            # A new learner predicts its first batch itself, and so finds out which layout of memory the model takes.
            if learner is not self._met or not absorbs(learner):
                self.adapter(images)
                self._met = learner
                return
            with self.adapter.turn:
                self.adapter.learn(images, logits)

    def _answer(self, images: Tensor, heard: Tensor, clients: Sequence[str]) -> Tensor:
        """Predict all images, and learn from some."""
        if not heard.all():
            with self.adapter.paused():
                logits: Tensor = self.adapter(images)
        if heard.any():
            with self._shared(list(compress(clients, heard.tolist()))):
                learned = self.adapter(images[heard])
            logits = learned if heard.all() else logits.index_copy(0, heard.nonzero().flatten(), learned)
        return logits

    @contextmanager
    def _shared(self, clients: Sequence[str]) -> Iterator[None]:
        """Divide the memory between clients while samples of these are learned from."""
        memory = self.adapter.learner.memory()
        if memory is not None:
            self.shares.begin(memory, self.voices.numbers(clients))
        try:
            yield
        finally:
            self.shares.end()

    def _predicted(self, images: Tensor) -> Tensor:
        network = self.published.network
        assert network is not None  # who cannot be published is asked to `step`
        with torch.no_grad():
            return network(images)

    def _publish(self) -> None:
        self.published = self.publisher.publish(self.published.version + 1)

    def _replace(self, change: Callable[[], T], name: str) -> T:
        """Bring the adapter to another state, save that as a new version, then publish it; or change nothing.

        Whoever asked for it may rely on it: a restart does not bring back the state left behind. A process that is
        killed meanwhile leaves either the old snapshots or the new one, since a file is written at once or not at all.
        """
        before, version = self.adapter.state_dict(), self.published.version
        try:
            result = change()
            published = self.publisher.publish(version + 1)
            if (error := self.saver.save(version + 1)) is not None:
                raise not_saved(f"{name} was not done, version {version} goes on", error)
        except BaseException:
            self.folder.remove(version + 1)  # it may be there, though not safely
            self.adapter.load_state_dict(before)
            raise
        finally:
            self._met = None  # what was predicted a moment ago is from another state, or another learner's
        self.published = published
        self.inbox.empty()
        return result

    def _tell_skipped(self, skipped: dict[int, str]) -> None:
        for version, reason in skipped.items():
            self.events.add("failure", f"the snapshot of version {version} was skipped: {reason}"[:300])

    def _look_and_save(self) -> None:
        now = time.monotonic()
        if now >= self._look_due:
            self._look()
            self._look_due = now + REFRESH
        if self.saver.is_due:
            self.saver.save(self.published.version)

    def _look(self) -> None:
        """Renew the statistics. A failure is told when it begins; until it ends the old ones stay."""
        try:
            self.stats, self.guard_fired = self.adapter.stats, guard_counts(self.adapter)
            self.clients = self.voices.listing()
        except Exception as error:  # whatever it is, predictions and learning do not depend on it
            if not self._looking_fails:
                logger.exception("the statistics cannot be taken, the service goes on")
                self.events.add("failure", f"the statistics are old: {type(error).__name__}: {error}"[:300])
            self._looking_fails = True
            return
        self._looking_fails = False


def guard_counts(adapter: Adapter) -> dict[str, int]:
    """How often each reason was found by a guard: images for "unknown", steps for the others."""
    return {} if adapter.guard is None else {reason: adapter.guard.totals[reason] for reason in get_args(Reason)}
