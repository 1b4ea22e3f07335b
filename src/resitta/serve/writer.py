"""The writer: owns the adapter, learns in the background, and publishes the weights.

Readers predict with the published weights, offer the images for learning, and submit tasks, which run in the writer's
`LearnerThread`. So a prediction never waits for an update.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.errors import BadState
from resitta.method import Learner
from resitta.runtime.learn_queue import Samples, joined
from resitta.runtime.weight_handoff import PublishedNetwork, weights_of
from resitta.serve.client_screening import ClientScreening
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learning import REFRESH, Contents, QueueLearner, Report, contents, failure, guard_counts
from resitta.serve.memory_quotas import Shares
from resitta.serve.reader import Predicted
from resitta.serve.settings import Limits
from resitta.serve.storage import Saver, StateFolder, not_saved
from resitta.serve.stream_priors import Correct, unchanged

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Writer(QueueLearner):
    """Learns from the images of all clients in turn, in batches."""

    def __init__(self, adapter: Adapter, folder: StateFolder, limits: Limits, events: Events) -> None:
        self.adapter = adapter
        adapter.corrects = False  # samples of several streams come in no order; readers correct each stream
        super().__init__(limits, events, lock=adapter.lock)
        self.folder = folder
        self._report_skipped(folder.recover(adapter))
        self.front = PublishedNetwork.of(adapter)
        self._publish(max(folder.versions(), default=0))
        self.saver = Saver(adapter, folder, events, every=limits.save_every, version=self.version)
        self.stats, self.guard_fired = adapter.stats, guard_counts(adapter)
        self.screening, self.shares = ClientScreening(adapter, events, most=limits.clients), Shares()
        self.clients = self.screening.listing()
        adapter.add_callback(events)
        self._met: Learner | None = None
        self._stats_fail = self._attributing_fails = False
        self._stats_due = 0.0

    # For other threads.

    def close(self) -> None:
        """Finish the step under way, save, and stop; images still waiting are not learned from."""
        self.thread.close()
        self.saver.save(self.version)

    def predict(self, images: Tensor, clients: Sequence[str], correct: Correct = unchanged) -> Predicted:
        """Predict with the published weights and queue the images; without them, predict and learn in one step."""
        moved = images.to(self.adapter.source.device, self.adapter.source.dtype)
        if self.front is None:
            logits, version, learned = self._submit(partial(self.step, moved, clients)).result()
            return correct(logits), version, learned
        logits, version = self.front.predict(moved)
        answer = correct(logits)
        taken = self.offer(images, answer if self.adapter.method.feedback else logits, clients)
        muted = self.screening.muted
        return answer, version, [found and name not in muted for found, name in zip(taken, clients, strict=True)]

    def report(self) -> Report:
        """Return the state of the writer, without waiting for its thread."""
        return Report(
            version=self.version,
            paused=self.queue.paused,
            concurrent=self.front is not None,
            counters=self.queue.counters,
            stats=self.stats,
            events=self.events.newest(),
            failed_saves=self.saver.failures.count,
            guard_fired=self.guard_fired,
            clients=self.clients,
            muted=self.screening.muted,
            harmful=self.screening.harmful,
        )

    # Tasks: all of them run in the writer's thread.

    def step(self, images: Tensor, clients: Sequence[str]) -> Predicted:
        """Predict and learn in one call."""
        version, before = self.version, self.adapter.learner.updates
        allowed = np.array([not self.queue.paused and name not in self.screening.muted for name in clients])
        logits = self._answer(images, torch.from_numpy(allowed).to(images.device), clients)
        self.queue.record(len(images), screened=int((~allowed).sum()))
        if not self.queue.paused:
            self.screening.allowed(images, logits, clients)
            self.screening.count(clients, allowed)
        if self.adapter.learner.updates != before:
            self._publish(self.version + 1)
        return logits, version, allowed.tolist()

    def pause(self) -> None:
        """Stop learning at once; predictions continue."""
        self._pause("learning paused")

    def resume(self) -> None:
        """Learn again."""
        self._resume()

    def reset(self) -> int:
        """Go back to the source model, once that is saved, and return the new version."""
        self._replace(self.adapter.reset, "the reset")
        self.events.add("reset", f"reset to the source model, as version {self.version}")
        return self.version

    def snapshot(self) -> int:
        """Save now and return the version saved."""
        if (error := self.saver.save(self.version)) is not None:
            raise not_saved(f"version {self.version} could not be saved", error)
        self.events.add("control", f"version {self.version} saved")
        return self.version

    def rollback(self, version: int | None = None) -> dict[str, Any]:
        """Go back to a snapshot, the newest that can be read unless another is named, once that is saved.

        Return the new version, the snapshot it was made from, and the newer snapshots that could not be read.
        """
        versions = self.folder.versions()
        wanted = versions[::-1] if version is None else [version]
        if not set(wanted) & set(versions):
            known = ", ".join(map(str, versions)) or "none yet; POST /snapshot makes one"
            raise Refused(409, f"there is no snapshot of version {version}; available: {known}")
        try:
            found, skipped = self._replace(partial(self.folder.load_first, self.adapter, wanted), "the rollback")
        except BadState as error:
            raise Refused(409, f"no snapshot can be read: {error}") from error
        self._report_skipped(skipped)
        self.events.add("rollback", f"rolled back to version {found}, as version {self.version}")
        return {"version": self.version, "snapshot": found, "skipped": sorted(skipped)}

    def bank(self, most: int) -> Contents:
        """Copy the memory of samples, the youngest first."""
        return contents(self.adapter, most)

    # In the writer's thread.

    def _learn(self, batch: list[Samples]) -> int:
        """Learn from the images of a batch that may be learned from; return how many."""
        before, source = self.adapter.learner.updates, self.adapter.source
        images, logits = joined(batch)
        images = images.to(source.device, source.dtype)
        if logits is None:
            assert self.front is not None  # otherwise images are not queued
            logits = self.front.predict(images)[0]
        logits = logits.to(source.device)
        clients = [samples.client for samples in batch]
        allowed = self.screening.allowed(images, logits, clients)
        if allowed.any():
            chosen = torch.from_numpy(allowed).to(source.device)
            self._learn_from(images[chosen], logits[chosen], list(compress(clients, allowed.tolist())))
        if self.adapter.learner.updates != before:
            self._publish(self.version + 1)
            self._attribute(self.adapter.learner.updates - before)
        self.screening.count(clients, allowed)
        return int(allowed.sum())

    def _attribute(self, updates: int) -> None:
        """Measure the influence of clients. Learning does not depend on it; its first failure is an event."""
        try:
            if updates > 0:
                self.screening.attribute(updates)
        except Exception as error:
            logger.exception("the influence of clients cannot be measured; learning continues")
            if not self._attributing_fails:
                self.events.add("failure", failure("the influence of clients cannot be measured", error))
            self._attributing_fails = True

    def _pause_after(self, error: Exception) -> None:
        """Pause learning after an error, such as memory that ran out; predictions continue."""
        logger.error("learning failed and is paused", exc_info=error)
        self._pause(failure("learning failed and is paused", error), "failure")

    def _learn_from(self, images: Tensor, logits: Tensor, clients: Sequence[str]) -> None:
        """Learn from existing predictions, if the learner can."""
        learner = self.adapter.learner
        with self._shared(clients):
            # A new learner predicts its first batch itself, to find out whether the model supports channels_last.
            if learner is not self._met or not learner.learns_from_predictions:
                self.adapter(images)
                self._met = learner
                return
            self.adapter.learn_from(images, logits)

    def _answer(self, images: Tensor, allowed: Tensor, clients: Sequence[str]) -> Tensor:
        """Predict all images, and learn from some."""
        if not allowed.all():
            with self.adapter.paused():
                logits: Tensor = self.adapter(images)
        if allowed.any():
            with self._shared(list(compress(clients, allowed.tolist()))):
                learned = self.adapter(images[allowed])
            logits = learned if allowed.all() else logits.index_copy(0, allowed.nonzero().flatten(), learned)
        return logits

    @contextmanager
    def _shared(self, clients: Sequence[str]) -> Iterator[None]:
        """Apply the memory quotas while samples of these clients are learned from."""
        memory = self.adapter.learner.memory()
        if memory is not None:
            self.shares.begin(memory, self.screening.numbers(clients))
        try:
            yield
        finally:
            self.shares.end()

    def _publish(self, version: int) -> None:
        if self.front is not None:
            self.front.weights.put(weights_of(self.adapter), version)
        self.version = version

    def _replace(self, change: Callable[[], T], name: str) -> T:
        """Change the adapter's state, save it as a new version and publish it; on an error, change nothing.

        A restart does not bring back the old state. A process that is killed meanwhile leaves either the old snapshots
        or the new one, since files are written atomically.
        """
        before, version = self.adapter.state_dict(), self.version
        try:
            result = change()
            if (error := self.saver.save(version + 1)) is not None:
                raise not_saved(f"{name} failed; version {version} remains in use", error)
            self._publish(version + 1)
        except BaseException:
            self.folder.remove(version + 1)  # it may exist, but not be flushed to disk
            self.adapter.load_state_dict(before)
            raise
        finally:
            self._met = None  # existing predictions come from another state or learner
        self.queue.clear()
        return result

    def _report_skipped(self, skipped: dict[int, str]) -> None:
        for version, reason in skipped.items():
            self.events.add("failure", f"the snapshot of version {version} was skipped: {reason}"[:300])

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._stats_due:
            self._refresh()
            self._stats_due = now + REFRESH
        if self.saver.is_due:
            self.saver.save(self.version)

    def _refresh(self) -> None:
        """Update the statistics. The first of several failures is reported; the old statistics stay."""
        try:
            self.stats, self.guard_fired = self.adapter.stats, guard_counts(self.adapter)
            self.clients = self.screening.listing()
        except Exception as error:  # predictions and learning do not depend on it
            if not self._stats_fail:
                logger.exception("the statistics cannot be computed, the service continues")
                self.events.add("failure", failure("the statistics are not updated", error))
            self._stats_fail = True
            return
        self._stats_fail = False
