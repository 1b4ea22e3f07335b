"""Whose turn it is to update, when more streams are due than a call has time for."""

from collections.abc import Callable


class Turns:
    """The streams that are due. Turns alternate: the most drifted one, then the one that has waited longest.

    So none starves: a stream with n others before it gets a turn within 2 (n + 1), whatever joins later.

    >>> turns = Turns()
    >>> for name in "abcd":
    ...     turns.join(name)
    >>> drift = {"a": 0, "b": 0, "c": 1, "d": 2}
    >>> [turns.take(drift.__getitem__) for _ in range(4)]
    ['d', 'a', 'c', 'b']
    """

    def __init__(self) -> None:
        self._due: dict[str, None] = {}
        self._by_drift = True

    def __len__(self) -> int:
        return len(self._due)

    def join(self, name: str) -> None:
        """Add a stream behind the others, unless it is due already."""
        self._due.setdefault(name)

    def leave(self, name: str) -> None:
        """Remove a stream, if it is due."""
        self._due.pop(name, None)

    def take(self, drift: Callable[[str], float]) -> str:
        """Remove the stream whose turn it is, and return it; of equally drifted ones it is the first."""
        name = max(self._due, key=drift) if self._by_drift and len(self._due) > 1 else next(iter(self._due))
        self._by_drift = not self._by_drift
        self.leave(name)
        return name
