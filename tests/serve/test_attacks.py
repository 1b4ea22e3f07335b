"""Attacks that have stopped the service, or held it up, or been told wrongly of; each is bounded, on the loopback."""

import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.serve.helpers import grey16, picture, scan_bomb, until
from tests.serve.test_hostile import talk

from resitta.serve.service import Service
from resitta.serve.settings import Limits

LARGE = 8000, 5000
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture
def limits() -> Limits:
    return Limits(learn_batch=8)


def send(url: str, content: bytes, kind: str = "image/png", seconds: float = 60) -> httpx.Response:
    return httpx.post(f"{url}/predict", content=content, headers={"Content-Type": kind}, timeout=seconds)


def test_two_small_files_of_many_scans_do_not_stop_the_service(url: str) -> None:
    bomb = scan_bomb(*LARGE, 4000)
    assert len(bomb) < 50_000
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(send(url, bomb).status_code)) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(1)  # both are at work
    start = time.monotonic()
    assert send(url, picture()).status_code == 200
    assert time.monotonic() - start < 5
    for thread in threads:
        thread.join()
    assert answers == [413, 413]


class TestShortOfTime:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(answer_timeout=1.0, max_pixels=10**9, learn_batch=8)

    def test_the_time_for_an_answer_includes_decoding(self, url: str, service: Service) -> None:
        files = [("images", ("a.png", grey16(*LARGE)))] * 10
        start = time.monotonic()
        answer = httpx.post(f"{url}/predict", files=files, timeout=60)
        assert answer.status_code == 503
        assert answer.json()["error"] == "no answer within 1 s; try again later"
        assert time.monotonic() - start < 4
        assert send(url, picture()).status_code == 200

    def test_the_time_for_an_answer_includes_the_body(self, url: str, service: Service) -> None:
        def slowly() -> Iterator[bytes]:
            for _ in range(50):
                time.sleep(0.1)
                yield b"a"

        start = time.monotonic()
        answer = httpx.post(f"{url}/predict", content=slowly(), headers={"Content-Type": "image/png"}, timeout=60)
        assert answer.status_code == 503
        assert time.monotonic() - start < 10


def test_a_thousand_clients_that_never_read_hold_up_nobody(url: str) -> None:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connections: list[socket.socket] = []
    try:
        for _ in range(1000):
            connections.append(talk(url, ask * 200))  # the answers are longer than any buffer
        time.sleep(1)
        for path in ("/health", "/ready"):
            assert httpx.get(url + path, timeout=30).status_code == 200
        assert send(url, picture()).status_code == 200
    finally:
        for connection in connections:
            connection.close()


def test_a_client_that_goes_in_mid_body_is_no_failure(
    url: str, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    before = client.get("/metrics").text
    for _ in range(3):
        talk(url, HEAD + b"Content-Length: 1000\r\n\r\nabc").close()
    until(lambda: 'resitta_refused_total{status="499"} 3.0' in client.get("/metrics").text, 5)
    assert 'status="500"' not in before + client.get("/metrics").text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


SHAPES = ["(True, 4, 4, 3)", "(-1, -4, 4, 3)", "(0x1" + "0" * 9000 + ",)", "(1,) * 99", "(48," + "1," * 99 + ")"]


def test_lengths_of_an_array_that_are_none_are_refused(client: httpx.Client) -> None:
    for shape in SHAPES:
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(48)
        answer = client.post("/predict", content=raw, headers={"Content-Type": "application/x-npy"})
        assert answer.status_code == 400, shape
        assert "npy header" in answer.json()["error"], shape


class TestLittleRoom:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(max_bodies=100_000, body_timeout=5.0, learn_batch=8)

    def test_a_client_without_room_can_read_why_while_it_sends(self, url: str, client: httpx.Client) -> None:
        first = talk(url, HEAD + b"Content-Length: 200000\r\n\r\n" + bytes(90_000))
        second = talk(url, HEAD + b"Content-Length: 10000000\r\n\r\n")
        for _ in range(100):
            second.sendall(bytes(100_000))
            time.sleep(0.002)
        second.settimeout(10)
        answer = second.recv(65_536)
        while b"}" not in answer and (more := second.recv(65_536)):
            answer += more
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"in progress hold" in answer
        second.close()
        first.close()
        until(lambda: send(url, picture()).status_code == 200)
