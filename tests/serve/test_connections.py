import socket
import time
from contextlib import suppress

import httpx
import pytest
from tests.serve.helpers import until
from tests.serve.test_hostile import answer_of, talk

from resitta.serve import connections
from resitta.serve.settings import Limits


def test_a_head_that_never_ends_is_cut_off(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.4)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        start = time.monotonic()
        slow.settimeout(10)
        for _ in range(4):
            slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
            time.sleep(0.05)
        assert slow.recv(100) == b""
        assert time.monotonic() - start < 5


class TestFew:
    """A service of few connections."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(connections=6, client_connections=4, body_timeout=3.0, learn_batch=8)

    def test_a_connection_that_does_nothing_makes_way(self, url: str) -> None:
        idle = [talk(url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(4)]
        for connection in idle:
            assert answer(connection).startswith(b"HTTP/1.1 200")
            time.sleep(0.05)
        with httpx.Client(base_url=url) as client:
            assert client.get("/health").status_code == 200
            rest(idle[0])  # has an end: the oldest is cut
            assert cut(client, "room") == 1
            assert client.get("/ready").status_code == 200, "over the same connection"
        for connection in idle:
            connection.close()

    def test_a_client_whose_connections_are_all_at_work_is_turned_away(self, url: str) -> None:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 9\r\n\r\n"
        busy = [talk(url, head) for _ in range(4)]
        time.sleep(0.5)
        further = talk(url, head + b"a")
        refusal = answer(further)
        assert refusal.startswith(b"HTTP/1.1 429 ")
        assert b"all 4 connections of this client have a request in progress" in refusal
        assert further.recv(100) == b""
        with talk_from(url, "127.0.0.2", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as other:
            assert answer(other).startswith(b"HTTP/1.1 200"), "another client is answered"
        for connection in busy:
            assert b" 408 " in answer_of(connection)
        assert httpx.get(f"{url}/health").status_code == 200

    def test_the_client_with_the_most_connections_makes_way_for_others(self, url: str) -> None:
        many = [talk(url, b"") for _ in range(4)]
        others = [talk_from(url, f"127.0.0.{number}", b"") for number in (2, 3)]
        time.sleep(0.5)
        with talk_from(url, "127.0.0.4", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as further:
            assert answer(further).startswith(b"HTTP/1.1 200")
        assert many[0].recv(100) == b""
        for connection in others:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer(connection).startswith(b"HTTP/1.1 200")
        for connection in (*many, *others):
            connection.close()


class TestOne:
    """A service of one connection for each client."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(connections=6, client_connections=1)

    def test_the_limit_holds_after_the_only_connection_made_way(self, url: str) -> None:
        idle = [talk(url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(3)]
        start = time.monotonic()
        for connection in idle[:2]:
            rest(connection)  # has an end: each made way for the next
        assert time.monotonic() - start < 5, "at once, not when an idle connection is closed"
        assert answer(idle[2]).startswith(b"HTTP/1.1 200")


class TestBehindProxy:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(client_connections=1, proxies=1, learn_batch=8)

    def test_the_connections_of_a_proxy_are_not_those_of_one_client(self, url: str) -> None:
        ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        several = [talk(url, ask) for _ in range(5)]
        for connection in several:
            assert answer(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(ask)
            assert answer(connection).startswith(b"HTTP/1.1 200")
            connection.close()


def test_a_client_that_does_not_read_is_cut_off(
    url: str, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.5)
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with talk(url, ask * 500) as never_reads:
        until(lambda: cut(client, "write") == 1)
        assert len(rest(never_reads)) < 500 * len(client.get("/openapi.json").content)
    assert client.get("/health").status_code == 200


def test_a_client_that_reads_slowly_but_all_is_not_cut_off(url: str, client: httpx.Client) -> None:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = len(client.get("/openapi.json").content)
    found = 0
    with talk(url, ask * 200) as slow:
        while found < 200 * length:
            more = slow.recv(100_000)
            assert more
            found += len(more)
            time.sleep(0.002)
    assert cut(client, "write") == 0


def test_an_old_connection_ends_with_an_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with talk(url, ask) as connection:
        assert b"connection: close" not in answer(connection).lower()
        monkeypatch.setattr(connections, "LIFETIME_SECONDS", 0)
        connection.sendall(ask * 2)
        last = rest(connection)
    assert last.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in last.lower()


def cut(client: httpx.Client, reason: str) -> int:
    """How many connections were cut for a reason."""
    lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(f'resitta_connections_cut_total{{reason="{reason}"}}')]
    return int(float(found[0].split()[1])) if found else 0


def talk_from(url: str, address: str, request: bytes) -> socket.socket:
    """As another client: all addresses of 127/8 are this machine."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20, source_address=(address, 0))
    connection.sendall(request)
    return connection


def answer(connection: socket.socket) -> bytes:
    """One answer of the service, which is JSON."""
    found = b""
    while not found.endswith(b"}") and (more := connection.recv(65_536)):
        found += more
    return found


def rest(connection: socket.socket) -> bytes:
    """What a connection still holds, up to its end, whichever that is."""
    found = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(2**20):
            found += more
    return found
