"""Locks that make adapters thread-safe and fork-safe; SIGINT is deferred until a change is complete."""

import functools
import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from operator import itemgetter
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def synchronized(method: F) -> F:
    """Decorate a method to hold its object's lock, with signals deferred.

    The object keeps its lock, made by `new_lock`, as the attribute `lock`.

    >>> class Counter:
    ...     def __init__(self):
    ...         self.lock, self.value = new_lock(), 0
    ...     @synchronized
    ...     def add(self):
    ...         self.value += 1
    >>> counter = Counter()
    >>> counter.add()
    >>> counter.value
    1
    """

    @functools.wraps(method)
    def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        with defer_signals(), self.lock:
            return method(self, *args, **kwargs)

    return cast(F, inner)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT, and SIGTERM where Python handles it, until the block is over.

    Their handlers run in the main thread only, so other threads need no protection.

    >>> try:
    ...     with defer_signals():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("complete")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    complete
    interrupted
    """
    came: dict[int, Any] = {}
    handlers = _handlers() if threading.current_thread() is threading.main_thread() else {}
    try:
        for number in handlers:
            signal.signal(number, came.setdefault)  # only record it
        yield
    finally:
        for number, handler in reversed(handlers.items()):
            signal.signal(number, handler)
        for number, frame in came.items():
            handlers[number](number, frame)


def _handlers() -> dict[int, Callable[..., Any]]:
    """The installed handlers that are Python functions; the system's own end the process or do nothing."""
    found = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in found.items() if callable(handler)}


class LockRank(IntEnum):
    """The order in which a thread takes locks, lower ranks first. A fork takes all of them in this order."""

    ADAPTER = 0
    """An adapter as a whole: its holder may use the learner."""
    CALLS = 1
    """The network that predicts for an adapter that learns in the background."""
    COMPARISON = 2
    """What a shadow has compared."""
    QUEUE = 3
    """The samples that wait for a learner thread, and the buffer of published weights."""
    MOMENT = 4
    """Locks inside which no other is taken."""


PATIENCE = 1.0
"""Seconds that a fork first waits for a lock before it releases those it has and tries again."""
RESEND = 0.1
"""Seconds after a fork when deferred signals are sent again: an exception raised inside a fork is lost."""

_locks: weakref.WeakValueDictionary[tuple[LockRank, int], Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_making = threading.RLock()
"""Held while a lock is added, and last of all by a fork, so that none is made while a process is copied."""
_fork = threading.local()


def new_lock(rank: LockRank = LockRank.ADAPTER) -> "threading.RLock":
    """Make a reentrant lock that no forked process inherits in a locked state.

    >>> lock = new_lock()
    >>> with lock, lock:
    ...     pass
    """
    lock = threading.RLock()
    with _making:
        _locks[rank, next(_numbers)] = lock
    return lock


def called_in_forks(method: Callable[[Any], None]) -> "weakref.WeakSet[Any]":
    """Return a set of objects, on each of which a forked process calls this method."""
    objects: weakref.WeakSet[Any] = weakref.WeakSet()

    def call_all() -> None:
        for each in list(objects):
            method(each)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call_all)
    return objects


def _take_all() -> None:
    """Wait for running changes: a forked process has no other threads that could complete them.

    Taking locks in the order of their ranks avoids deadlocks; the timeout resolves those of code that nests adapters
    in another order.
    """
    handlers = _handlers() if threading.current_thread() is threading.main_thread() else {}
    came: dict[int, Any] = {}
    _fork.came = came
    for number in handlers:
        signal.signal(number, came.setdefault)
    patience = PATIENCE
    while not _taken(patience):
        patience *= 2
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _taken(patience: float) -> bool:
    """Take all locks, or none."""
    with _making:
        locks = sorted(_locks.items(), key=itemgetter(0))
    _fork.held = held = []
    for _, lock in locks:
        if not lock.acquire(timeout=patience):
            _give_all_back()
            return False
        held.append(lock)
    _making.acquire()
    held.append(_making)
    if {key for key, _ in locks}.issuperset(_locks):
        return True
    _give_all_back()  # one was made meanwhile
    return False


def _give_all_back() -> None:
    while _fork.held:
        _fork.held.pop().release()


def _resend_signals() -> None:
    """Send signals that came while the fork waited again, after it."""
    over = threading.Event()

    def resend(numbers: list[int]) -> None:
        over.wait()
        time.sleep(RESEND)
        for number in numbers:
            os.kill(os.getpid(), number)  # to the process, which interrupts a waiting main thread

    if _fork.came:
        threading.Thread(target=resend, args=(list(_fork.came),), daemon=True).start()
    over.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_give_all_back, after_in_child=_give_all_back)
    os.register_at_fork(after_in_parent=_resend_signals)
