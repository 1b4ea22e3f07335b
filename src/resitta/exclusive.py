"""One at a time: threads take turns, Ctrl-C waits until a change is complete, a fork waits until nobody is busy."""

import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def exclusive(method: F) -> F:
    """Let a method run only while no other exclusive method of its object runs in another thread.

    The object keeps its lock, made by `new_turn`, as the attribute `turn`.

    >>> class Counter:
    ...     def __init__(self):
    ...         self.turn, self.value = new_turn(), 0
    ...     @exclusive
    ...     def add(self):
    ...         self.value += 1
    >>> counter = Counter()
    >>> counter.add()
    >>> counter.value
    1
    """

    @functools.wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with interrupts_wait(), self.turn:
            return method(self, *args, **kwargs)

    return cast(F, alone)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold back Ctrl-C, and SIGTERM where Python handles it, until the block is over.

    Both strike in the main thread only, so that other threads need no protection.

    >>> try:
    ...     with interrupts_wait():
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
            signal.signal(number, came.setdefault)  # note it, do nothing yet
        yield
    finally:
        for number, handler in reversed(handlers.items()):
            signal.signal(number, handler)
        for number, frame in came.items():
            handlers[number](number, frame)


def _handlers() -> dict[int, Callable[..., Any]]:
    """The handlers in force that are Python functions; the system's own end the process or do nothing."""
    found = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in found.items() if callable(handler)}


_turns: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_held = threading.local()


def new_turn() -> AbstractContextManager[Any]:
    """Make a lock that its holder may take again and that no forked process inherits in a locked state.

    >>> turn = new_turn()
    >>> with turn, turn:
    ...     pass
    """
    turn = threading.RLock()
    _turns[id(turn)] = turn
    return turn


def _take_all() -> None:
    """Wait for running changes: a forked process has no other threads that could complete them."""
    _held.turns = []
    for reference in _turns.valuerefs():
        if (turn := reference()) is not None:
            turn.acquire()
            _held.turns.append(turn)


def _give_all_back() -> None:
    for turn in _held.turns:
        turn.release()
    _held.turns = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_give_all_back, after_in_child=_give_all_back)
