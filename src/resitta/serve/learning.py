"""What the learners of a service have in common: the queue of predicted images, and the thread that learns from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.errors import WorkerLost
from resitta.monitor.guard.guard_callback import Reason
from resitta.monitor.stats import Stats
from resitta.runtime.learn_queue import Counters, LearnQueue, Samples
from resitta.runtime.learner_thread import LearnerThread
from resitta.serve.events import Events, Kind, LogEntry
from resitta.serve.http_errors import Refused
from resitta.serve.settings import Limits

T = TypeVar("T")
Task = Literal["pause", "resume", "reset", "snapshot", "rollback", "bank"]
"""The tasks of a learner: the names of its methods."""
REFRESH = 0.25
"""Seconds between two updates of the statistics, which cost too much to compute after every image."""
Contents = tuple[Tensor, list[int], list[int], list[float]]
"""Images, labels, ages and entropies of samples."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of a learner.

    `concurrent`: predictions do not wait for updates. For a writer in another process, `writer` is a name that changes
    with a restart, and `readers` holds the version of each reader.
    """

    version: int
    paused: bool
    concurrent: bool
    counters: Counters
    stats: Stats
    events: list[LogEntry]
    failed_saves: int
    guard_fired: dict[str, int]
    clients: list[dict[str, Any]]
    muted: frozenset[str]
    harmful: frozenset[str]
    writer: str = ""
    readers: dict[int, int] | None = None


class QueueLearner(ABC):
    """Learns in a thread of its own from images that are queued, and runs tasks in that thread.

    The tasks are methods of the class that derives from it.
    """

    def __init__(self, limits: Limits, events: Events, *, lock: AbstractContextManager[Any]) -> None:
        self.events = events
        self.queue = LearnQueue(room=limits.learn_queue, batch=limits.learn_batch)
        self.thread = LearnerThread(
            self.queue,
            learn=self._learn,
            failed=self._pause_after,
            tick=self._tick,
            every=REFRESH,
            gather=REFRESH,
            lock=lock,
            name="resitta-writer",
        )

    # For other threads.

    def start(self) -> None:
        """Begin to learn."""
        self.thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self.thread.alive

    def offer(
        self, images: Tensor, logits: Tensor | None, clients: Sequence[str], streams: Sequence[str] | None = None
    ) -> list[bool]:
        """Queue images for learning, with the client and the stream of each; return which were taken."""
        known = [None] * len(images) if logits is None else torch.split(logits, 1)
        names = [""] * len(images) if streams is None else streams
        rows = zip(torch.split(images, 1), known, clients, names, strict=True)
        return self.queue.offer([Samples(image, row, client, stream=name) for image, row, client, name in rows])

    def ask(self, task: Task, *arguments: Any) -> "Future[Any]":
        """Run a task in the thread, before it learns further."""
        return self._submit(partial(getattr(self, task), *arguments))

    def _submit(self, action: Callable[[], T]) -> "Future[T]":
        try:
            return self.thread.submit(action)
        except WorkerLost:
            raise Refused(503, "the service is stopping; try again later") from None

    # In the thread.

    def _pause(self, reason: str, kind: Kind = "pause") -> None:
        """Stop learning at once; predictions continue."""
        self.queue.paused = True
        self.queue.clear()
        self.events.add(kind, reason)

    def _resume(self) -> None:
        """Learn again."""
        self.queue.paused = False
        self.events.add("resume", "learning resumed")

    @abstractmethod
    def _learn(self, batch: list[Samples]) -> int:
        """Learn from a batch; return from how many images of it."""

    @abstractmethod
    def _pause_after(self, error: Exception) -> None:
        """Pause what failed to learn."""

    @abstractmethod
    def _tick(self) -> None:
        """Do what is due, after every batch and task and at least every `REFRESH` seconds."""


def contents(adapter: Adapter, most: int) -> Contents:
    """Copy an adapter's memory of samples, the youngest first."""
    memory = adapter.learner.memory()
    if memory is None or memory.size == 0:
        return torch.empty(0, 3, 1, 1), [], [], []
    order = memory.ages.argsort(kind="stable")[:most]
    images = memory.samples[order.tolist()].cpu()
    return images, memory.labels[order].tolist(), memory.ages[order].tolist(), memory.entropies[order].tolist()


def guard_counts(adapter: Adapter) -> dict[str, int]:
    """How often the guard found each reason: images for "unknown", steps for the others."""
    return {} if adapter.guard is None else {reason: adapter.guard.totals[reason] for reason in get_args(Reason)}


def failure(what: str, error: Exception) -> str:
    """The text of an event.

    >>> failure("learning failed", ValueError("no images"))
    'learning failed: ValueError: no images'
    """
    return f"{what}: {type(error).__name__}: {error}"[:300]
