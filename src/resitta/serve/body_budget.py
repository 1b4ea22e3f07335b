"""How many bytes the requests at work hold together: each has its limit, but many clients can come at once."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from resitta.serve.http_errors import Refused

Take = Callable[[int], None]


class Traffic:
    """Counts the bytes of all bodies from their arrival until they are decoded. For one thread: the event loop.

    A client may hold half of them. One that holds less than a thousandth always has room, so that clients with large
    bodies cannot shut out those with small ones.

    >>> traffic = Traffic(most=10)
    >>> with traffic.request("client") as take:
    ...     take(8)
    ...     print(traffic.held)
    8
    >>> traffic.held
    0
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._held_by: Counter[str] = Counter()

    @contextmanager
    def request(self, client: str) -> Iterator[Take]:
        """Count a request's bytes as they come; refuse them where there is no room, unless it is the only one."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            self._check(client, own, count)
            self.held += count
            self._held_by[client] += count
            own += count

        try:
            yield take
        finally:
            self.held -= own
            self._held_by[client] -= own
            if not self._held_by[client]:
                del self._held_by[client]

    def _check(self, client: str, own: int, count: int) -> None:
        of_client = self._held_by[client]
        full = self.held > own and self.held + count > self.most and of_client + count > self.most // 1024
        greedy = of_client > own and of_client + count > self.most // 2
        if full or greedy:
            who, held = ("your requests", of_client) if greedy else ("requests", self.held)
            raise Refused(429, f"{who} at work hold {held:,} bytes already; try again later", close=True)
