"""The thread that learns in the background, and the queue of batches before it."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor

from resitta.method import AdapterLike
from resitta.runtime.locks import LockRank, new_lock

LIMIT = 256
"""How many samples may wait; a batch that finds no room is not learned from. One batch always finds room."""
ROUND = 64
"""How many samples are learned from together, as far as batches are smaller."""
GATHER = 0.02
"""How many seconds the first of them waits for the others."""


@dataclass(frozen=True)
class Batch:
    """What was predicted, and the event after which it is there on the device."""

    images: Tensor
    logits: Tensor
    ready: torch.cuda.Event | None


class Worker:
    """Lets an adapter learn from the batches it is offered, in order, in a thread of its own.

    As a context manager it is the adapter's turn: everything offered before has been learned from, and nothing else
    is while the block lasts. The thread begins with the first batch and ends with the adapter, which it does not keep
    alive.

    >>> from resitta import adapt
    >>> from resitta.conformance import tiny_network
    >>> adapter = adapt(tiny_network(), background=True)
    >>> logits = adapter(torch.rand(10, 3, 8, 8))
    >>> with adapter.background.worker:
    ...     print(adapter.samples)
    10
    """

    def __init__(self, adapter: AdapterLike) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.dropped = 0
        self._learner = new_lock()  # whoever owns it may use the learner
        self._owner: int | None = None
        self._depth = 0
        self._changed = threading.Condition(cast(Any, new_lock(LockRank.QUEUE)))  # guards all that follows
        self._batches: deque[Batch] = deque()
        self._thread: threading.Thread | None = None
        self._offered = self._finished = 0
        self._holds = self._settling = 0
        self._closed = False
        self._adapter = weakref.ref(adapter)
        weakref.finalize(adapter, self.end)
        _workers.add(self)

    # --- for those who predict, and those who look at the learner ---------------------------------------------------

    def offer(self, batch: Batch) -> None:
        """Put a batch into the queue, or count it as dropped if there is no room."""
        with self._changed:
            waiting = self._waiting()
            if self._closed or (waiting and waiting + len(batch.images) > LIMIT):
                self.dropped += len(batch.images)
                return
            self._batches.append(batch)
            self._offered += 1
            self._ensure_thread()
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until everything offered so far has been learned from; who has the turn already waits for nothing."""
        if self._owns():
            return
        with self._changed:
            last = self._offered
            if self._finished < last:
                self._ensure_thread()
            self._settling += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._finished >= last)
            finally:
                self._settling -= 1

    def __enter__(self) -> Self:
        if not self._owns():
            self.settle()
            self._hold(1)  # the lock is not fair: the thread could take it again and again
            try:
                self._learner.__enter__()
            except BaseException:  # of a signal's handler
                self._hold(-1)
                raise
            self._owner = threading.get_ident()
        self._depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        if self.stream is not None:  # what was done to the learner comes first on the device, too
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        self._owner = None
        self._learner.__exit__(None, None, None)
        self._hold(-1)

    def _hold(self, more: int) -> None:
        with self._changed:
            self._holds += more
            self._changed.notify_all()

    def convert(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move or convert what waits, as the adapter was. For who has the turn."""
        with self._changed:
            for batch in self._batches:
                if batch.ready is not None:
                    torch.cuda.current_stream(batch.images.device).wait_event(batch.ready)
            self._batches = deque(Batch(fn(b.images), fn(b.logits), b.ready) for b in self._batches)

    def end(self) -> None:
        """Stop after the round under way; what waits is not learned from."""
        with self._changed:
            self._closed = True
            self.dropped += self._waiting()
            self._finished += len(self._batches)
            self._batches.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._work_waits():
            adapter = self._adapter()
            if adapter is None:
                return
            self._round(adapter)
            del adapter  # it may go while the thread waits

    def _round(self, adapter: AdapterLike) -> None:
        """Learn from the first batches of the queue; they leave it only when the learner is free, in view of forks."""
        with self._owning():
            batches = self._take()
            try:
                if batches and adapter.background is not None:
                    adapter.background.learn(adapter, batches)
            finally:
                with self._changed:
                    self._finished += len(batches)
                    self._changed.notify_all()

    @contextmanager
    def _owning(self) -> Iterator[None]:
        with self._learner:
            self._owner, self._depth = threading.get_ident(), 1
            try:
                yield
            finally:
                self._owner, self._depth = None, 0

    def _work_waits(self) -> bool:
        """Wait for a batch, then a little for more; return False when the end has come."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._batches and not self._holds))
            self._changed.wait_for(lambda: self._closed or self._settling or self._waiting() >= ROUND, GATHER)
            return not self._closed

    def _take(self) -> list[Batch]:
        """The first batches of the queue that go together, at least one."""
        taken: list[Batch] = []
        with self._changed:
            while self._batches and _fits(self._batches[0], taken):
                taken.append(self._batches.popleft())
        return taken

    def _waiting(self) -> int:
        return sum(len(batch.images) for batch in self._batches)

    def _owns(self) -> bool:
        return self._owner == threading.get_ident()

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="resitta-background", daemon=True)
            self._thread.start()

    def forked(self) -> None:
        """Forget, in a forked process, the threads that did not come along and what they were waiting for."""
        self._thread = None
        self._settling = 0
        self._holds = int(self._owns())


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in list(_workers):
        worker.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _fits(batch: Batch, taken: list[Batch]) -> bool:
    if not taken:
        return True
    same = batch.images.shape[1:] == taken[0].images.shape[1:] and batch.images.dtype == taken[0].images.dtype
    return same and len(batch.images) + sum(len(other.images) for other in taken) <= ROUND
