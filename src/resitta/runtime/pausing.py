"""`with adapter.paused()`: predict without learning."""

from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from resitta.runtime.locks import defer_signals


class Pausable(Protocol):
    """An adapter, a fleet or one of its streams."""

    @property
    def pauses(self) -> "Pauses":
        """The blocks that pause it."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held during a step."""


A = TypeVar("A", bound=Pausable)


class Pause(Generic[A]):
    """One such block: the adapter is paused while any of them is in the set `adapter.pauses`.

    The set is safe against exceptions of signal handlers: adding and removing are idempotent, unlike counting, and it
    holds weak references, so that a pause whose exit was interrupted ends with its object.
    """

    def __init__(self, adapter: A) -> None:
        self.adapter = adapter

    def __enter__(self) -> A:
        try:
            self.adapter.pauses.add(self)
            with defer_signals(), self.adapter.lock:  # a step of another thread ends first
                return self.adapter
        except BaseException:
            self.adapter.pauses.discard(self)
            raise

    def __exit__(self, *error: object) -> None:
        self.adapter.pauses.discard(self)


Pauses = WeakSet[Pause[Any]]
