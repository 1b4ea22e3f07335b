"""Limit connections and slow clients: an asyncio protocol in front of the server's HTTP protocol.

uvicorn's `limit_concurrency` responds with 503 to all clients once there are too many connections, and it has no
timeout for clients that send or read slowly. Here such clients are disconnected. If there are too many connections, an
idle one of the client with the most is closed, so a health probe can connect however many connections others hold.
"""

import asyncio
import json
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resitta.serve.metrics import ServiceMetrics
from resitta.serve.security import address_key
from resitta.serve.settings import Limits

HEAD_SECONDS = 10.0
"""Timeout for the head of a request, from the connection or its first byte."""
WRITE_SECONDS = 10.0
"""Timeout for a client to read a response."""
LIFETIME_SECONDS = 600.0
"""Age at which a connection is closed after its next response."""
TURNED_AWAY_SECONDS, TURNED_AWAY = 2.0, 100
"""How long a refused connection may read the reason, and how many may do so at once."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: close with a reset."""


class Connections:
    """The connections of one server.

    `protocol` wraps the server's protocol factory and `app` its application; the peer's address links the two.
    """

    def __init__(self, limits: Limits, metrics: ServiceMetrics, *, most: int) -> None:
        self.metrics = metrics
        self.most = min(most, limits.connections)
        self.most_of_client = self.most if limits.proxies else limits.client_connections
        self.request_seconds = limits.body_timeout + limits.answer_timeout + WRITE_SECONDS
        self.turned_away = 0
        self._by_peer: dict[Any, Connection] = {}
        self._by_client: defaultdict[str, set[Connection]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._by_peer)

    def protocol(self, make: Callable[..., asyncio.Protocol]) -> Callable[..., asyncio.Protocol]:
        """Wrap the protocol that a server creates for each connection."""
        return lambda **options: Connection(make(**options), self)

    def app(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application to notify each connection when a request begins and ends."""

        async def tracked(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self._by_peer.get(scope.get("client"))
            if scope["type"] != "http" or connection is None:
                await app(scope, receive, send)
                return
            connection.begin()
            try:
                await app(scope, receive, closing(send) if connection.old else send)
            except asyncio.CancelledError:  # uvicorn's timeout for a graceful shutdown is over
                with suppress(RuntimeError):  # part of the response is already sent
                    await JSONResponse({"error": "the service is stopping; try again later"}, 503)(scope, receive, send)
            finally:
                connection.end()

        return tracked

    def admit(self, connection: "Connection") -> bool:
        """Admit a connection, in place of an idle one if necessary."""
        of_client = self._by_client.get(connection.client, set())
        if len(of_client) >= self.most_of_client and not self._make_way(of_client):
            return False
        if len(self) >= self.most:
            largest = max(self._by_client.values(), key=len)
            if not self._make_way(largest) and not self._make_way(self._by_peer.values()):
                return False
        self._by_peer[connection.peer] = connection
        self._by_client[connection.client].add(connection)  # `of_client` was removed if its last one was cut
        return True

    def leave(self, connection: "Connection") -> None:
        """Remove a connection."""
        if self._by_peer.get(connection.peer) is connection:
            del self._by_peer[connection.peer]
        of_client = self._by_client.get(connection.client, set())
        of_client.discard(connection)
        if not of_client:
            self._by_client.pop(connection.client, None)

    def _make_way(self, group: Collection["Connection"]) -> bool:
        """Cut a connection that does not read its response, else the one idle for longest."""
        useless = [connection for connection in group if connection.blocked or not connection.requests]
        if not useless:
            return False
        min(useless, key=lambda connection: (not connection.blocked, connection.since)).cut("room")
        return True


class Connection(asyncio.Protocol):
    """One connection: forwards all events to the inner protocol and enforces the timeouts."""

    def __init__(self, inner: asyncio.Protocol, table: Connections) -> None:
        self.inner = inner
        self.table = table
        self.peer: Any = None
        self.client = ""
        self.requests = 0
        self.loop = asyncio.get_running_loop()
        self.made = self.since = self.loop.time()
        self._transport: asyncio.Transport | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._admitted = False

    @property
    def blocked(self) -> bool:
        """Whether the client is not reading."""
        return "write" in self._timers

    @property
    def old(self) -> bool:
        """Whether to close the connection after its next response."""
        return self.loop.time() > self.made + LIFETIME_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or refuse it if there are too many."""
        self._transport = transport
        found = transport.get_extra_info("peername")
        self.peer = tuple(found[:2]) if found else self
        self.client = address_key(self.peer[0]) if found else ""
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is then called as soon as a byte is not read
        self._admitted = self.table.admit(self)
        if self._admitted:
            self.inner.connection_made(transport)
            self._start("read", HEAD_SECONDS, "head")
        else:
            self._turn_away(transport)

    def data_received(self, data: bytes) -> None:
        """Start the timeout for a request's head, unless it is running."""
        if self._admitted:
            if not self.requests and "read" not in self._timers:
                self._start("read", HEAD_SECONDS, "head")
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Forward the event."""
        return self.inner.eof_received() if self._admitted else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop("read")
        self._stop("write")
        if self._admitted:
            self.table.leave(self)
            self.inner.connection_lost(exc)
        else:
            self.table.turned_away -= 1

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read."""
        self._start("write", WRITE_SECONDS, "write")
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Stop the timeout: everything is sent."""
        self._stop("write")
        self.inner.resume_writing()

    def begin(self) -> None:
        """Note that the application received the head of a request."""
        self.requests += 1
        self.since = self.loop.time()
        self._start("read", self.table.request_seconds, "request")

    def end(self) -> None:
        """Note that the application sent its response."""
        self.requests -= 1
        self.since = self.loop.time()
        self._stop("read")

    def cut(self, reason: str) -> None:
        """Close the connection immediately."""
        if self._admitted:
            self.table.leave(self)
        if self._transport is None or (self._transport.is_closing() and not self.blocked):
            return
        self.table.metrics.cut.labels(reason=reason).inc()
        if self.blocked:  # discard the kernel's send buffer
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    def _turn_away(self, transport: asyncio.Transport) -> None:
        """Respond before any request is read, and close once the client had time to read it."""
        self.table.turned_away += 1
        self.table.metrics.refusals.labels(status="429").inc()
        if self.table.turned_away > TURNED_AWAY:
            transport.abort()
            return
        most = self.table.most_of_client
        sentence = f"all {most} connections of this client have a request in progress; try again later"
        body = json.dumps({"error": sentence}).encode()
        head = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        transport.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        transport.write_eof()
        self._start("read", TURNED_AWAY_SECONDS, "room")

    def _start(self, timer: str, seconds: float, reason: str) -> None:
        self._stop(timer)
        self._timers[timer] = self.loop.call_later(seconds, self.cut, reason)

    def _stop(self, timer: str) -> None:
        if (running := self._timers.pop(timer, None)) is not None:
            running.cancel()


def closing(send: Send) -> Send:
    """Add `Connection: close` to a response."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return last
