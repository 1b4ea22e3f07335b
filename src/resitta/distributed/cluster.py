"""A Ray cluster: one that is running, or a temporary one on this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from resitta.errors import WorkerLost, require

PATIENCE = 5.0
"""Seconds to wait for a cluster to answer; Ray itself would try for many minutes."""


@contextmanager
def cluster(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Yield the package ray, connected to `address` (auto, HOST:PORT); None starts a local cluster of `workers`."""
    ray = require("ray", "dist")
    if ray.is_initialized():  # the caller's connection stays the caller's
        yield ray
        return
    own = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    try:
        check_reachable(address)
        ray.init(**(own if address is None else {"address": address}), log_to_driver=False, logging_level="error")
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise WorkerLost(f"no Ray cluster at {address!r} ({reason}); start one with: ray start --head") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_reachable(address: str | None) -> None:
    """Raise an OSError at once if nothing listens at HOST:PORT or ray://HOST:PORT."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
