"""Services for tests: a service around a small network, and a real server on a free port around it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI
from tests.serve.helpers import SIZE, TOKEN, until
from torch import nn

import resitta
from resitta.serve.app import create_app
from resitta.serve.security import allowed_names
from resitta.serve.server import listen, make_server
from resitta.serve.service import Service
from resitta.serve.settings import Limits

if TYPE_CHECKING:
    from tests.serve.browser import Browser

collect_ignore = ["real_images.py"]  # hooks for schemathesis, which need it


@pytest.fixture
def limits() -> Limits:
    return Limits(max_body=200_000, max_images=8, max_pixels=1_000_000, body_timeout=0.5, learn_batch=8)


@pytest.fixture
def service(model: nn.Module, limits: Limits, tmp_path: Path) -> Service:
    adapter = resitta.adapt(model, "resitta", update_every=16, capacity=16)
    return Service(
        adapter, size=SIZE, state=tmp_path / "state", limits=limits, names=["ape", "bee", "cat", "doe", "elk"]
    )


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """A server in a thread."""
    with listen("127.0.0.1", 0) as on:
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [on]})
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{on.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with serving(create_app(service, token=TOKEN, names=allowed_names("127.0.0.1", "127.0.0.1"))) as url:
        yield url


@pytest.fixture
def open_url(service: Service) -> Iterator[str]:
    """A service that answers to any name, as on an address of the network."""
    with serving(create_app(service, token=TOKEN)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A browser for the tests of a file."""
    from tests.serve.browser import Browser

    with Browser() as browser:
        yield browser


@pytest.fixture
def holder(url: str) -> Iterator[httpx.Client]:
    """A client that holds the token."""
    with httpx.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client
