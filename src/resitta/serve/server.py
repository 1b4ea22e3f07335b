"""Run an application: the listening socket, and uvicorn behind our connection limits."""

import gc
import resource
import signal
import socket
from typing import cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from resitta.errors import BadSetting
from resitta.serve.connections import Connections

IDLE_SECONDS = 15
STOP_SECONDS = 2
SEND_BUFFER = 2**18
"""Bytes of a socket's send buffer; by default the kernel buffers megabytes for a client that does not read."""
OTHER_FILES = 128
"""File descriptors reserved for the state, workers and libraries."""


def listen(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes a free one."""
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted connections inherit it
    try:
        listening.bind((host, port))
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        raise BadSetting(f"cannot listen on {host} port {port} ({error}); choose another --host or --port") from error


def run(app: FastAPI, on: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then finish open requests within seconds and shut the application down."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again after its shutdown; exit with 0
    server = make_server(app)
    gc.collect()
    gc.freeze()  # a full collection of these objects would block the event loop for 0.2 s
    server.run(sockets=[on])


def make_server(app: FastAPI) -> uvicorn.Server:
    """Configure uvicorn behind the connection limits."""
    connections = Connections(app.state.limits, app.state.metrics, most=_descriptors() - OTHER_FILES)
    config = uvicorn.Config(
        connections.app(app),
        # `http` is documented to take a protocol class; it is only called, so a factory works. "h11" names H11Protocol.
        http=cast(type[H11Protocol], connections.protocol(H11Protocol)),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `security` reads them, and only behind trusted proxies
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)


def _descriptors() -> int:
    """Return how many file descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(soft, 2 * OTHER_FILES)
