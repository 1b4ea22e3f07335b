"""What waits for the writer: images to learn from, in a bounded queue that accounts for each one, and tasks."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeVar

import torch
from torch import Tensor

from resitta.serve.fair_queues import Queues
from resitta.serve.http_errors import Refused

T = TypeVar("T")


@dataclass(frozen=True)
class Counters:
    """Where predicted images went since the start: the others add up to `offered`, at every moment.

    `dropped`: the queue was full. `skipped`: learning was paused, or a pause, reset or rollback emptied the queue.
    `screened`: they or their client look like nothing known (see `Voices`).
    """

    offered: int = 0
    learned: int = 0
    dropped: int = 0
    skipped: int = 0
    screened: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Taken:
    """Images to learn from, what was predicted of them if that is known of all, and whose they are."""

    images: Tensor
    logits: Tensor | None
    clients: list[str]


class Inbox:
    """Any thread may offer images and ask for tasks; one thread takes them, in turns from all clients.

    >>> inbox = Inbox(room=2, batch=64)
    >>> inbox.offer(torch.rand(3, 3, 8, 8), torch.rand(3, 10))
    [True, True, False]
    >>> inbox.take().images.shape, inbox.counters.dropped, inbox.counters.waiting
    (torch.Size([2, 3, 8, 8]), 1, 2)
    """

    def __init__(self, *, room: int, batch: int) -> None:
        self.room = room
        self.batch = min(batch, room)
        self.counters = Counters()
        self.paused = False
        self.closed = False
        self._samples: Queues[tuple[Tensor, Tensor | None, str]] = Queues()
        self._tasks: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()

    def offer(self, images: Tensor, logits: Tensor | None = None, clients: Sequence[str] | None = None) -> list[bool]:
        """Queue images as far as there is room, and return which were taken. Never waits for the writer.

        In a full queue an image takes the place of one of the client with the most, if its own client has fewer.

        `logits`: what was predicted of them; without, the writer predicts them anew. `clients`: whose they are.
        """
        known = repeat(None, len(images)) if logits is None else logits
        names = repeat("", len(images)) if clients is None else clients
        with self._wake:
            if self.paused:
                self._count(offered=len(images), skipped=len(images))
                return [False] * len(images)
            room = free = self.room - self.counters.waiting
            taken = []
            for image, predicted, client in zip(images, known, names, strict=True):
                taken.append(self._samples.add(client, (image, predicted, client), instead=free <= 0))
                free -= taken[-1] and free > 0
            self._count(offered=len(images), waiting=room - free, dropped=len(images) - (room - free))
            if self._batch_waits():  # single images do not wake the writer: full batches cost the least
                self._wake.notify()
            return taken

    def ask(self, action: Callable[[], T]) -> Future[T]:
        """Have something done in the writer's thread, before it learns further."""
        future: Future[T] = Future()

        def task() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has given up
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

        with self._wake:
            if self.closed:
                raise Refused(503, "the service is stopping; try again later")
            self._tasks.append(task)
            self._wake.notify()
        return future

    def wait(self, seconds: float) -> None:
        """Sleep until there is a task or a whole batch, but no longer than so many seconds."""
        with self._wake:
            self._wake.wait_for(lambda: self._tasks or self.closed or self._batch_waits(), timeout=seconds)

    def tasks(self) -> list[Callable[[], None]]:
        """Take all tasks."""
        with self._wake:
            found = list(self._tasks)
            self._tasks.clear()
            return found

    def take(self) -> Taken | None:
        """Take images, from all clients in turn, of each those that wait the longest.

        They count as waiting until they are settled.
        """
        with self._wake:
            if not self._samples or self.closed:
                return None
            samples = self._samples.take(self.batch)
        images, predicted, clients = zip(*samples, strict=True)
        logits = [row for row in predicted if row is not None]
        return Taken(torch.stack(images), torch.stack(logits) if len(logits) == len(images) else None, list(clients))

    def settle(self, *, learned: int = 0, skipped: int = 0, screened: int = 0) -> None:
        """Say what became of images that were taken."""
        with self._wake:
            waiting = -learned - skipped - screened
            self._count(learned=learned, skipped=skipped, screened=screened, waiting=waiting)

    def record(self, images: int, screened: int = 0) -> None:
        """Count images that were predicted and learned from in one step, but for some, without waiting here."""
        with self._wake:
            became = {"skipped": images} if self.paused else {"learned": images - screened, "screened": screened}
            self._count(offered=images, **became)

    def empty(self) -> None:
        """Forget the images that wait."""
        with self._wake:
            self._count(skipped=len(self._samples), waiting=-len(self._samples))
            self._samples.clear()

    def close(self) -> None:
        """Take no further tasks and wake the writer for the last time."""
        with self._wake:
            self.closed = True
            self._wake.notify()

    def _batch_waits(self) -> bool:
        return len(self._samples) >= self.batch

    def _count(self, **changes: int) -> None:
        now = self.counters
        self.counters = replace(now, **{name: getattr(now, name) + change for name, change in changes.items()})
