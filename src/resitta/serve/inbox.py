"""What waits for the writer: images to learn from, in a bounded queue that accounts for each one, and tasks."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeVar

import torch
from torch import Tensor

from resitta.serve.refused import Refused

T = TypeVar("T")


@dataclass(frozen=True)
class Counters:
    """Where predicted images went since the start: offered = learned + dropped + skipped + waiting, at every moment.

    `dropped`: the queue was full. `skipped`: learning was paused, or a pause, reset or rollback emptied the queue.
    """

    offered: int = 0
    learned: int = 0
    dropped: int = 0
    skipped: int = 0
    waiting: int = 0


class Inbox:
    """Any thread may offer images and ask for tasks; one thread takes them.

    >>> inbox = Inbox(room=2, batch=64)
    >>> inbox.offer(torch.rand(3, 3, 8, 8), torch.rand(3, 10))
    2
    >>> images, logits = inbox.take()
    >>> images.shape, logits.shape, inbox.counters
    (torch.Size([2, 3, 8, 8]), torch.Size([2, 10]), Counters(offered=3, learned=0, dropped=1, skipped=0, waiting=2))
    """

    def __init__(self, *, room: int, batch: int) -> None:
        self.room = room
        self.batch = min(batch, room)
        self.counters = Counters()
        self.paused = False
        self.closed = False
        self._samples: deque[tuple[Tensor, Tensor | None]] = deque()
        self._tasks: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()

    def offer(self, images: Tensor, logits: Tensor | None = None) -> int:
        """Queue images as far as there is room, and return how many were taken. Never waits for the writer.

        `logits`: what was predicted of them; without, the writer predicts them anew.
        """
        with self._wake:
            count = len(images)
            if self.paused:
                self._count(offered=count, skipped=count)
                return 0
            taken = min(count, self.room - self.counters.waiting)
            self._count(offered=count, waiting=taken, dropped=count - taken)
            known = repeat(None, taken) if logits is None else logits[:taken]
            self._samples.extend(zip(images[:taken], known, strict=True))
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

    def take(self) -> tuple[Tensor, Tensor | None] | None:
        """Take images that wait the longest and, if all have them, their logits.

        They count as waiting until they are settled.
        """
        with self._wake:
            if not self._samples or self.closed:
                return None
            samples = [self._samples.popleft() for _ in range(min(self.batch, len(self._samples)))]
        logits = [predicted for _, predicted in samples if predicted is not None]
        return torch.stack([image for image, _ in samples]), torch.stack(logits) if len(logits) == len(
            samples
        ) else None

    def settle(self, *, learned: int = 0, skipped: int = 0) -> None:
        """Say what became of images that were taken."""
        with self._wake:
            self._count(learned=learned, skipped=skipped, waiting=-learned - skipped)

    def record(self, images: int) -> None:
        """Count images that were predicted and learned from in one step, without waiting here."""
        with self._wake:
            self._count(offered=images, **{"skipped" if self.paused else "learned": images})

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
