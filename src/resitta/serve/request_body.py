"""Read the body of a request within limits of time and size."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from resitta.serve.http_errors import Refused
from resitta.serve.images import JSON, MULTIPART, RAW, media_type
from resitta.serve.settings import Limits

Take = Callable[[int], None]


class BodyBudget:
    """Limits the bytes that all request bodies hold together until they are decoded. Used by the event loop only.

    One client may hold half of the bytes. A client that holds less than a thousandth is always admitted, so large
    bodies cannot lock out small ones.

    >>> budget = BodyBudget(most=10)
    >>> with budget.request("client") as take:
    ...     take(8)
    ...     print(budget.held)
    8
    >>> budget.held
    0
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._held_by: Counter[str] = Counter()

    @contextmanager
    def request(self, client: str) -> Iterator[Take]:
        """Count the bytes of a request as they arrive; refuse them if the budget is exceeded by several requests."""
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
            raise Refused(429, f"{who} in progress hold {held:,} bytes already; try again later", close=True)


async def read_body(request: Request, limits: Limits, take: Take) -> tuple[str, bytearray]:
    """Return the content type and the body of a request; `take` counts the bytes as they arrive."""
    content_type = request.headers.get("content-type", "")
    if media_type(content_type) not in (*RAW, JSON, MULTIPART):
        known = ", ".join((*RAW, MULTIPART, JSON))
        raise Refused(415, f"Content-Type must be one of {known}, found {content_type[:60]!r}", close=True)
    return content_type, await read_bytes(request, limits, take)


async def read_bytes(request: Request, limits: Limits, take: Take) -> bytearray:
    """Return the body of a request; `take` counts the bytes as they arrive."""
    length = request.headers.get("content-length", "0")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "send the body without a Content-Encoding; images are compressed already", close=True)
    if not length.isdecimal() or int(length) > limits.max_body:
        raise _too_long(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                take(len(chunk))
                body += chunk
                if len(body) > limits.max_body:
                    raise _too_long(limits)
    except ClientDisconnect:
        raise Refused(499, "the client disconnected before its request was complete", close=True) from None
    except TimeoutError:
        sentence = f"the body did not arrive within {limits.body_timeout:g} s; send fewer images at once"
        raise Refused(408, sentence, close=True) from None
    return body


def _too_long(limits: Limits) -> Refused:
    return Refused(413, f"a request may have {limits.max_body:,} bytes; send fewer images at once", close=True)
