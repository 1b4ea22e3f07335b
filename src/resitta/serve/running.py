"""Run the service: a socket, uvicorn, and an end for clients that do not finish the head of their request."""

import asyncio
import signal
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from resitta.errors import BadSetting

HEAD_SECONDS = 10.0
IDLE_SECONDS = 15
STOP_SECONDS = 10
CONNECTIONS = 1000


def listen(host: str, port: int) -> socket.socket:
    """Take the port, or say why not; port 0 takes a free one."""
    # asyncio answers without delay (TCP_NODELAY) only on sockets that name their protocol.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        raise BadSetting(f"cannot listen on {host} port {port} ({error}); choose another --host or --port") from error


def run(app: FastAPI, on: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then finish what was begun and let the application close."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it once more at its end; leave as after any success
    make_server(app).run(sockets=[on])


def make_server(app: FastAPI) -> uvicorn.Server:
    """uvicorn with our limits."""
    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


class Impatient(H11Protocol):
    """uvicorn's own protocol, which by itself would wait forever for the rest of a request's head."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Wait on, or stop waiting when the head is there."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
