"""The one thread that learns from a queue of samples, and runs tasks that need exclusive access to the learner."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, TypeVar

import torch

from resitta.errors import WorkerLost
from resitta.runtime.learn_queue import LearnQueue, Samples
from resitta.runtime.locks import called_in_forks, new_lock

T = TypeVar("T")
JOIN_SECONDS = 10.0
"""How long the thread's user waits for the step under way when it is closed or deleted."""


class LearnerThread:
    """Learns from the samples of a queue, in a thread that starts with the first sample, task or `start`.

    As a context manager it is a lock: samples offered before have been learned from, and no others while it is held.
    `submit` runs a task in the thread instead, before the next batch.

    Args:
        queue: where samples wait.
        learn: learns from a batch and returns how many of its samples it used; the rest counts as screened.
        failed: is called with an exception of `learn`. The batch counts as skipped.
        tick: is called after every batch and task, and at least every `every` seconds.
        gather: how many seconds the first sample of a batch waits for the others.
        lock: held while learning and during tasks.

    `learn`, `failed` and `tick` are methods of one object. The thread holds it weakly and ends with it.

    >>> from resitta import adapt
    >>> from resitta.conformance import tiny_network
    >>> adapter = adapt(tiny_network(), "resitta", background=True)
    >>> logits = adapter(torch.rand(10, 3, 8, 8))
    >>> with adapter.background.thread:
    ...     print(adapter.samples)
    10
    """

    def __init__(
        self,
        queue: LearnQueue,
        *,
        learn: Callable[[list[Samples]], int],
        failed: Callable[[Exception], None],
        tick: Callable[[], None] | None = None,
        every: float | None = None,
        gather: float = 0.02,
        lock: AbstractContextManager[Any] | None = None,
        name: str = "resitta-background",
    ) -> None:
        self.queue = queue
        self.stream: torch.cuda.Stream | None = None
        self._learn, self._failed = weakref.WeakMethod(learn), weakref.WeakMethod(failed)
        self._tick = None if tick is None else weakref.WeakMethod(tick)
        self._every, self._gather, self._name = every, gather, name
        self._lock = lock or new_lock()  # its holder may use the learner
        self._owner: int | None = None
        self._depth = 0
        self._changed = queue.changed  # guards all that follows
        self._tasks: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._holds = self._settling = 0
        weakref.finalize(learn.__self__, self.close, JOIN_SECONDS)  # type: ignore[attr-defined]
        _threads.add(self)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    # --- for other threads --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._changed:
            if not self.alive and not self.queue.closed:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def offer(self, samples: Samples) -> None:
        """Queue samples for learning, or count them as dropped."""
        if any(self.queue.offer([samples])):
            self.start()

    def submit(self, action: Callable[[], T]) -> "Future[T]":
        """Run an action in the thread, before the next batch. Cancel the future to give up before it begins."""
        future: Future[T] = Future()

        def task() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)

        with self._changed:
            if self.queue.closed:
                raise WorkerLost("the learner thread has ended, and takes no further tasks")
            self._tasks.append(task)
            self._changed.notify_all()
        self.start()
        return future

    def settle(self) -> None:
        """Wait until as many samples as were accepted so far have been learned from. The lock's owner does not wait."""
        if self._owns():
            return
        with self._changed:
            last = self.queue.accepted
            if self.queue.finished < last:
                self.start()
            self._settling += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self.queue.finished >= last)
            finally:
                self._settling -= 1

    def close(self, timeout: float | None = None) -> None:
        """Stop after the step under way and the tasks submitted so far; waiting samples are dropped."""
        self.queue.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        if not self._owns():
            self.settle()
            self._hold(1)  # locks are not fair: the thread could take it again and again
            try:
                self._lock.__enter__()
            except BaseException:  # raised by a signal handler
                self._hold(-1)
                raise
            self._owner = threading.get_ident()
        self._depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        if self.stream is not None:  # later work in the thread's stream must see changes of the learner
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        self._owner = None
        self._lock.__exit__(None, None, None)
        self._hold(-1)

    def _hold(self, more: int) -> None:
        with self._changed:
            self._holds += more
            self._changed.notify_all()

    def _owns(self) -> bool:
        return self._owner == threading.get_ident()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            if not self.step():
                return
        with self._owning():
            self._run_tasks()

    def _wait(self) -> bool:
        """Wait for a task, a batch or the next tick; return False once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._must_act() or self._may_learn(), self._every)
            if self._may_learn():
                self._changed.wait_for(lambda: self._must_act() or self._settling or self.queue.has_batch, self._gather)
            return not self.queue.closed

    def _must_act(self) -> bool:
        return self.queue.closed or bool(self._tasks and not self._holds)

    def _may_learn(self) -> bool:
        return len(self.queue) > 0 and not self._holds

    def step(self) -> bool:
        """Run all tasks and learn from one batch, in the calling thread; return False if the user was deleted."""
        learn, failed = self._learn(), self._failed()
        if learn is None or failed is None:
            return False
        with self._owning():
            self._run_tasks()
            # A batch leaves the queue only while the lock is held: a forked process would lose it.
            if batch := self.queue.take():
                self._learn_from(batch, learn, failed)
            if self._tick is not None and (tick := self._tick()) is not None:
                tick()
        return True

    def _learn_from(
        self, batch: list[Samples], learn: Callable[[list[Samples]], int], failed: Callable[[Exception], None]
    ) -> None:
        count, used, done = sum(map(len, batch)), 0, False
        try:
            used, done = learn(batch), True
        except Exception as error:
            failed(error)
        finally:
            self.queue.settle(learned=used, **{"screened" if done else "skipped": count - used})

    def _run_tasks(self) -> None:
        with self._changed:
            tasks = list(self._tasks)
            self._tasks.clear()
        for task in tasks:
            task()

    @contextmanager
    def _owning(self) -> Iterator[None]:
        with self._lock:
            self._owner, self._depth = threading.get_ident(), 1
            try:
                yield
            finally:
                self._owner, self._depth = None, 0

    def forked(self) -> None:
        """In a forked process, drop the threads that exist only in its parent, and their tasks."""
        self._thread = None
        self._tasks.clear()
        self._settling = 0
        self._holds = int(self._owns())


_threads = called_in_forks(LearnerThread.forked)
