"""The writer: the one thread that owns the adapter, learns, and publishes what it has learned.

Nobody else touches the adapter. Others put images and tasks into its inbox, and read `published`: a copy of the
teacher that is replaced as a whole, never changed. So a prediction never waits for an update.
"""

import logging
import threading
import time
from contextlib import nullcontext
from typing import get_args

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.guard.sentry import Reason
from resitta.method import Learner
from resitta.serve.events import Events, Kind
from resitta.serve.inbox import Inbox
from resitta.serve.published import Publisher, absorbs
from resitta.serve.refused import Refused
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder

logger = logging.getLogger(__name__)
REFRESH = 0.25
"""Seconds between two looks at the adapter's statistics, which cost too much to take after every image."""


class Writer:
    """Learns from the images in its inbox, in their order, in batches of whatever is waiting."""

    def __init__(self, adapter: Adapter, folder: StateFolder, limits: Limits, events: Events) -> None:
        self.adapter = adapter
        self.folder = folder
        self.limits = limits
        self.events = events
        self.inbox = Inbox(room=limits.learn_queue, batch=limits.learn_batch)
        version = folder.recover(adapter)
        self.publisher = Publisher(adapter)
        self.published = self.publisher.publish(version)
        self.stats, self.guard_fired = adapter.stats, guard_counts(adapter)
        adapter.watch(events)
        self._met: Learner | None = None
        self.failed_saves = 0
        self._saving_fails = False
        self._looking_fails = False
        self._saved = (self.published.version, adapter.samples)
        self._save_due = time.monotonic() + limits.save_every
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

    # Tasks: what others may `ask` the inbox for. All of them run in the writer's thread.

    def step(self, images: Tensor) -> tuple[Tensor, int, int]:
        """Predict and learn in one call: the logits, the version they come from, and how many were learned from."""
        version, before = self.published.version, self.adapter.learner.updates
        with self.adapter.paused() if self.inbox.paused else nullcontext():
            logits = self.adapter(images)
        self.inbox.record(len(images))
        if self.adapter.learner.updates != before:
            self._publish()
        return logits, version, 0 if self.inbox.paused else len(images)

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
        """Go back to the source model and return the new version."""
        self.adapter.reset()
        self._start_over()
        self.events.add("control", f"reset to the source model, as version {self.published.version}")
        return self.published.version

    def snapshot(self) -> int:
        """Save now and return the version saved."""
        if not self._save():
            raise Refused(503, f"version {self.published.version} could not be saved; the events in /stats say why")
        self.events.add("control", f"version {self.published.version} saved")
        return self.published.version

    def rollback(self, version: int | None = None) -> int:
        """Go back to a snapshot, the newest unless another is named, and return the new version."""
        versions = self.folder.versions()
        chosen = versions[-1] if versions and version is None else version
        if chosen not in versions:
            known = ", ".join(map(str, versions)) or "none yet; POST /snapshot makes one"
            raise Refused(409, f"no snapshot of version {version} to go back to; there are: {known}")
        self.folder.load(self.adapter, chosen)
        self._start_over()
        self.events.add("control", f"rolled back to version {chosen}, as version {self.published.version}")
        return self.published.version

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
            if (samples := self.inbox.take()) is not None:
                self._learn(*samples)
            self._look_and_save()
        for task in self.inbox.tasks():  # asked for in the last moment
            task()
        self._save()

    def _learn(self, images: Tensor, logits: Tensor | None) -> None:
        before = self.adapter.learner.updates
        try:
            self._teach(images, logits)
            if self.adapter.learner.updates != before:
                self._publish()
        except Exception as error:  # such as memory that ran out: go on predicting from what was published
            logger.exception("learning failed and is paused")
            self.inbox.settle(skipped=len(images))
            self.pause(f"learning failed and is paused: {type(error).__name__}: {error}"[:300], "failure")
            return
        self.inbox.settle(learned=len(images))

    def _teach(self, images: Tensor, logits: Tensor | None) -> None:
        """Learn from what was predicted already, where that is known and the learner can."""
        source, learner = self.adapter.source, self.adapter.learner
        images = images.to(source.device, source.dtype)
        # A new learner predicts its first batch itself, and so finds out which layout of memory the model takes.
        if logits is None or learner is not self._met or not absorbs(learner):
            self.adapter(images)
            self._met = learner
            return
        with self.adapter.turn:
            self.adapter.learn(images, logits.to(source.device))

    def _publish(self) -> None:
        self.published = self.publisher.publish(self.published.version + 1)

    def _start_over(self) -> None:
        """Publish and save another state, so that a restart does not bring back the one left behind."""
        self._met = None  # what was predicted a moment ago is from the state left behind
        self._publish()
        self.inbox.empty()
        self._save()

    def _look_and_save(self) -> None:
        now = time.monotonic()
        if now >= self._look_due:
            self._look()
            self._look_due = now + REFRESH
        if now >= self._save_due:
            self._save()

    def _look(self) -> None:
        """Renew the statistics. A failure is told when it begins; until it ends the old ones stay."""
        try:
            self.stats, self.guard_fired = self.adapter.stats, guard_counts(self.adapter)
        except Exception as error:  # whatever it is, predictions and learning do not depend on it
            if not self._looking_fails:
                logger.exception("the statistics cannot be taken, the service goes on")
                self.events.add("failure", f"the statistics are old: {type(error).__name__}: {error}"[:300])
            self._looking_fails = True
            return
        self._looking_fails = False

    def _save(self) -> bool:
        """Save what is new. A failure, such as a full disk, is told, and the next save that is due tries again."""
        self._save_due = time.monotonic() + self.limits.save_every
        try:
            self._write()
        except Exception as error:  # whatever it is, learning does not depend on it
            self.failed_saves += 1
            logger.error("the state was not saved, the service goes on: %s", error)
            if not self._saving_fails:  # an event when it begins, lest a full disk pushes all others out
                self.events.add("failure", f"the state is not saved: {error}"[:300])
            self._saving_fails = True
            return False
        if self._saving_fails:
            self.events.add("control", f"saving works again, version {self.published.version} saved")
        self._saving_fails = False
        return True

    def _write(self) -> None:
        state = (self.published.version, self.adapter.samples)
        if state != self._saved or not self.folder.versions():
            self.folder.save(self.adapter, self.published.version)
            self._saved = state


def guard_counts(adapter: Adapter) -> dict[str, int]:
    """How often each reason was found by a guard: images for "unknown", steps for the others."""
    return {} if adapter.guard is None else {reason: adapter.guard.totals[reason] for reason in get_args(Reason)}
