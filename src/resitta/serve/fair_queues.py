"""One queue for each client, emptied in turn: nobody waits behind another's flood."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Queues(Generic[T]):
    """First in, first out for each client, round robin between clients; only clients with something waiting are kept.

    >>> queues = Queues()
    >>> for client, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4)):
    ...     _ = queues.add(client, item)
    >>> queues.take(3)
    [1, 4, 2]
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, client: str, item: T, *, instead: bool = False) -> bool:
        """Queue an item; `instead` of the newest one of the client with the most, and only if its own has fewer."""
        if instead:
            longest = max(self._queues, key=lambda name: len(self._queues[name]), default=client)
            if len(self._queues.get(longest, ())) <= len(self._queues.get(client, ())):
                return False
            self._queues[longest].pop()
            self._length -= 1
        self._queues.setdefault(client, deque()).append(item)
        self._length += 1
        return True

    def take(self, most: int) -> list[T]:
        """Take so many items, one of each client in turn; the next call goes on with the next client."""
        taken: list[T] = []
        while self._queues and len(taken) < most:
            client, waiting = self._queues.popitem(last=False)
            taken.append(waiting.popleft())
            if waiting:
                self._queues[client] = waiting
        self._length -= len(taken)
        return taken

    def clear(self) -> None:
        """Forget all items."""
        self._queues.clear()
        self._length = 0
