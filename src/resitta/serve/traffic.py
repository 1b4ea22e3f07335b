"""How many bytes the requests at work hold together: each has its limit, but many clients can come at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from resitta.serve.refused import Refused

Take = Callable[[int], None]


class Traffic:
    """Counts the bytes of all bodies from their arrival until they are decoded. For one thread: the event loop.

    >>> traffic = Traffic(most=10)
    >>> with traffic.request() as take:
    ...     take(8)
    ...     print(traffic.held)
    8
    >>> traffic.held
    0
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @contextmanager
    def request(self) -> Iterator[Take]:
        """Count a request's bytes as they come; refuse them where there is no room, unless it is the only one."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if self.held > own and self.held + count > self.most:
                raise Refused(429, f"requests at work hold {self.held:,} bytes already; try again later", close=True)
            self.held += count
            own += count

        try:
            yield take
        finally:
            self.held -= own
