"""How many connections there are, and how long each may take: a layer between the event loop and any HTTP protocol.

A client that reads slowly, or not at all, is cut off. Where there are too many connections, those that do nothing make
way, those of the client with the most first: so a probe gets through however many connections somebody else holds.
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

from resitta.serve.clients import address_key
from resitta.serve.metrics import Metrics
from resitta.serve.settings import Limits

HEAD_SECONDS = 10.0
"""For the head of a request, once something of it, or the connection, is there."""
WRITE_SECONDS = 10.0
"""For a client to take an answer."""
LIFETIME_SECONDS = 600.0
"""After these a connection is closed with its next answer."""
TURNED_AWAY_SECONDS, TURNED_AWAY = 2.0, 100
"""How long a connection that finds no room may read why, and how many may do so at once."""
RESET = struct.pack("ii", 1, 0)
"""Do not linger: close by a reset."""


class Connections:
    """The connections of one server.

    `protocol` goes around the server's own protocol and `app` around its application; the two meet by the address of
    the other side.
    """

    def __init__(self, limits: Limits, metrics: Metrics, *, most: int) -> None:
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
        """Put the limits around each protocol that a server makes for a connection."""
        return lambda **options: Connection(make(**options), self)

    def app(self, app: ASGIApp) -> ASGIApp:
        """Tell each connection when a request of it begins and ends."""

        async def attended(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self._by_peer.get(scope.get("client"))
            if scope["type"] != "http" or connection is None:
                await app(scope, receive, send)
                return
            connection.begin()
            try:
                await app(scope, receive, closing(send) if connection.old else send)
            except asyncio.CancelledError:  # the server stops and has waited long enough
                with suppress(RuntimeError):  # part of the answer is sent already
                    await JSONResponse({"error": "the service is stopping; try again later"}, 503)(scope, receive, send)
            finally:
                connection.end()

        return attended

    def admit(self, connection: "Connection") -> bool:
        """Take a connection in, if need be in place of another."""
        of_client = self._by_client.get(connection.client, set())
        if len(of_client) >= self.most_of_client and not self._make_way(of_client):
            return False
        if len(self) >= self.most:
            largest = max(self._by_client.values(), key=len)
            if not self._make_way(largest) and not self._make_way(self._by_peer.values()):
                return False
        self._by_peer[connection.peer] = connection
        self._by_client[connection.client].add(connection)  # a new set where the last of the old one made way
        return True

    def leave(self, connection: "Connection") -> None:
        """Forget a connection."""
        if self._by_peer.get(connection.peer) is connection:
            del self._by_peer[connection.peer]
        of_client = self._by_client.get(connection.client, set())
        of_client.discard(connection)
        if not of_client:
            self._by_client.pop(connection.client, None)

    def _make_way(self, group: Collection["Connection"]) -> bool:
        """Cut one connection whose answer is not read, or else the one that has had no request for the longest."""
        useless = [connection for connection in group if connection.blocked or not connection.requests]
        if not useless:
            return False
        min(useless, key=lambda connection: (not connection.blocked, connection.since)).cut("room")
        return True


class Connection(asyncio.Protocol):
    """One connection: passes everything on to the protocol inside, and keeps the time."""

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
        """Whether the client does not take what was sent to it."""
        return "write" in self._timers

    @property
    def old(self) -> bool:
        """Whether the connection should end with its next answer."""
        return self.loop.time() > self.made + LIFETIME_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find room for the connection, or say that there is none."""
        self._transport = transport
        found = transport.get_extra_info("peername")
        self.peer = tuple(found[:2]) if found else self
        self.client = address_key(self.peer[0]) if found else ""
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of every byte not taken
        self._admitted = self.table.admit(self)
        if self._admitted:
            self.inner.connection_made(transport)
            self._start("read", HEAD_SECONDS, "head")
        else:
            self._turn_away(transport)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request's head, unless it is there."""
        if self._admitted:
            if not self.requests and "read" not in self._timers:
                self._start("read", HEAD_SECONDS, "head")
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return self.inner.eof_received() if self._admitted else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop("read")
        self._stop("write")
        if self._admitted:
            self.table.leave(self)
            self.inner.connection_lost(exc)
        else:
            self.table.turned_away -= 1

    def pause_writing(self) -> None:
        """The client does not take what is sent: give it some time."""
        self._start("write", WRITE_SECONDS, "write")
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """All is sent."""
        self._stop("write")
        self.inner.resume_writing()

    def begin(self) -> None:
        """A request is complete but for its body, and is now worked on."""
        self.requests += 1
        self.since = self.loop.time()
        self._start("read", self.table.request_seconds, "request")

    def end(self) -> None:
        """The application has given its answer."""
        self.requests -= 1
        self.since = self.loop.time()
        self._stop("read")

    def cut(self, reason: str) -> None:
        """End the connection at once."""
        if self._admitted:
            self.table.leave(self)
        if self._transport is None or (self._transport.is_closing() and not self.blocked):
            return
        self.table.metrics.cut.labels(reason=reason).inc()
        if self.blocked:  # let the system forget at once what it holds for the client
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    def _turn_away(self, transport: asyncio.Transport) -> None:
        """Answer before anything is asked; close only when that can have been read."""
        self.table.turned_away += 1
        self.table.metrics.refusals.labels(status="429").inc()
        if self.table.turned_away > TURNED_AWAY:
            transport.abort()
            return
        sentence = f"{self.table.most_of_client} of your connections have a request at work already; try again later"
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
    """Let an answer be the last of its connection."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return last
