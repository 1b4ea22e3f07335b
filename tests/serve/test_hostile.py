"""Hundreds of requests that mean no good: each gets a sentence, the process lives, the state does not change."""

import base64
import gzip
import io
import json
import random
import socket
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import httpx
import numpy as np
from tests.serve.helpers import SIZE, TOKEN, array, picture, writer_of

from resitta.serve.service import Service

Request = tuple[str, str, dict[str, str], bytes]
MULTIPART = "multipart/form-data; boundary=x"


def png(width: int, height: int, data: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG made by hand, with whatever it promises."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), *extra, (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks)


def post(content: bytes, kind: str = "image/png", **headers: str) -> Request:
    return "POST", "/predict", {"Content-Type": kind, **headers}, content


def part(content: bytes, *, disposition: str = 'form-data; name="images"; filename="a.png"') -> bytes:
    return b"--x\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"


def bad_pictures() -> Iterator[Request]:
    for side in (30_000, 50_000, 2**31 - 1, 1_001, 0):
        yield post(png(side, side, bytes(1000)))
    yield post(png(30_000, 1000, bytes(1000)))
    yield post(png(20, 20, bytes(20 * 61), (b"zTXt", b"bomb\0\0" + zlib.compress(bytes(150_000_000), 9))))
    yield post(png(20, 20, b"", (b"iCCP", b"x\0\0" + zlib.compress(bytes(50_000_000), 9))))
    for kind in ("PNG", "JPEG", "WEBP"):
        whole = picture(kind, width=40, height=30)
        yield from (post(whole[: len(whole) * share // 40], f"image/{kind.lower()}") for share in range(1, 38))
    for start in (b"", b"GIF89a", b"BM", b"II*\0", b"%!PS", b"\0\0\1\0", b"P6 9 9 255\n", b"%PDF", b"<svg>", b"{}"):
        yield post(start + bytes(40))
        yield post(start + bytes(40), "application/octet-stream")


def bad_arrays() -> Iterator[Request]:
    shapes = [
        (),
        (0,),
        (5,),
        (3, SIZE, SIZE, 1),
        (1, 4, SIZE, SIZE),
        (99, SIZE, SIZE, 3),
        (1, 1, 1, 1, 3),
        (0, 9, 9, 3),
    ]
    for shape in shapes:
        for dtype in (np.uint8, np.float32, np.int64, np.bool_, np.complex64, "S4", "datetime64[s]"):
            yield post(array(np.zeros(shape, dtype)), "application/x-npy")
    for value in (np.nan, np.inf, -np.inf, -1.0, 1.5, 255.0):
        yield post(array(np.full((3, SIZE, SIZE), value, np.float32)), "application/x-npy")
    whole = array(np.zeros((3, SIZE, SIZE), np.float32))
    yield from (post(whole[: len(whole) * share // 30], "application/x-npy") for share in range(1, 30))
    for header in (
        "__import__('os').abort()",
        "{'descr': '|O', 'fortran_order': 0, 'shape': (1,)}",
        "[" * 900,
        "9" * 900,
    ):
        text = header.encode()
        yield post(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text, "application/x-npy")
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    yield post(file.getvalue(), "application/x-npy")


def bad_forms() -> Iterator[Request]:
    good = base64.b64encode(picture()).decode()
    values: list[Any] = [
        None,
        1,
        "x",
        [],
        {},
        [1],
        [None],
        [[]],
        ["x"],
        ["é"],
        [good[:-9]],
        [good, 3],
        [good, "?"],
        {"a": good},
    ]
    for value in values:
        yield post(json.dumps({"images": value}).encode(), "application/json")
        yield post(json.dumps(value).encode(), "application/json")
        yield post(json.dumps({"images": [good], "other": value}).encode(), "application/json")
    for text in (b"", b"{", b"[" * 50_000, b'{"images":' * 9_000, b"\xff\xfe", b"NaN", b"1" * 9_000, b'"\\ud800"'):
        yield post(text, "application/json")
    yield post(json.dumps({"images": [good] * 9}).encode(), "application/json")
    end = b"--x--\r\n"
    bodies = [b"", b"--x", b"--x\r\n\r\n", end, part(picture()), part(b"") + end, part(b"junk") + end, b"junk" * 99]
    bodies += [part(picture()) * 9 + end, part(picture(), disposition="form-data") + end, part(b"a" * 9_000) + end]
    bodies += [part(picture(), disposition='form-data; name="field"') + end, part(picture()) + part(b"no") + end]
    yield from (post(body, MULTIPART) for body in bodies)
    yield from (post(part(picture()) + end, kind) for kind in ("multipart/form-data", "multipart/form-data; boundary="))


def bad_headers() -> Iterator[Request]:
    for kind in (
        "",
        "text/plain",
        "image/gif",
        "image/*",
        "application/x-www-form-urlencoded",
        "application/pickle",
        "é" * 9,
    ):
        yield post(picture(), kind)
    yield post(gzip.compress(picture()), **{"Content-Encoding": "gzip"})
    yield post(picture(), **{"Content-Encoding": "br"})
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(100_000_000))
    yield post(bomb.getvalue(), "application/octet-stream")
    yield post(bomb.getvalue(), "application/zip")
    yield post(bytes(200_001))
    yield post(bytes(5_000_000))
    yield post(picture(), **{"Sec-Fetch-Site": "cross-site"})
    for path in ("/pause", "/resume", "/reset", "/snapshot", "/rollback", "/rollback?version=0"):
        for wrong in (
            "",
            "Bearer",
            "Bearer x",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN} ",
            f"Token {TOKEN}",
            "B" * 9_000,
        ):
            yield "POST", path, {"Authorization": wrong.strip()} if wrong.strip() != f"Bearer {TOKEN}" else {}, b""
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        yield from ((method, path, {}, b"") for path in ("/predict", "/pause", "/reset", "/nowhere", "/../etc/passwd"))
    for path in (
        "/predict/",
        "/bank",
        "/page/index.html",
        "/%2e%2e/",
        "/" + "a" * 3_000,
        "/stats/x",
        "/docs/oauth2-redirect",
    ):
        yield "GET", path, {}, b""


def damaged(count: int) -> Iterator[Request]:
    """Whole files with a few wrong bytes: most cannot be read; those that can are left out."""
    chance = random.Random(0)
    for number in range(count):
        raw = bytearray(picture("PNG", seed=number, width=30, height=30))
        for _ in range(chance.randint(1, 20)):
            raw[chance.randrange(8, len(raw) - 40)] ^= chance.randint(1, 255)
        yield post(bytes(raw))


def test_every_hostile_request_gets_a_sentence_and_changes_nothing(client: httpx.Client, service: Service) -> None:
    requests = [*bad_pictures(), *bad_arrays(), *bad_forms(), *bad_headers(), *damaged(120)]
    assert len(requests) >= 500
    before = state(service)
    for method, path, headers, content in requests:
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = client.request(method, path, headers=encoded, content=content or None)  # type: ignore[arg-type]
        about = (method, path[:80], headers, content[:60], answer.status_code, answer.text[:200])
        assert 400 <= answer.status_code < 500, about
        sentence = answer.json()["error"]
        assert 10 < len(sentence) < 400, about
    assert state(service) == before
    assert service.ready
    good = client.post("/predict", content=picture(), headers={"Content-Type": "image/png"})
    assert good.status_code == 200


def test_slow_and_broken_connections(url: str, client: httpx.Client, service: Service) -> None:
    before = state(service)
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    connections = [talk(url, head + b"Content-Length: 1000\r\n\r\nabc") for _ in range(20)]
    connections += [talk(url, head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc") for _ in range(20)]
    for connection in connections:
        assert b" 408 " in answer_of(connection)
    for rest in (
        b"Content-Length: 1000\r\n\r\nabc",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: x\r\n\r\n",
        b"\0\r\n\r\n",
    ):
        talk(url, head + rest).close()  # gone before the answer
    endless = talk(url, head + b"Transfer-Encoding: chunked\r\n\r\n")
    flood(endless)
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST /predict HTTP/9.9\r\n\r\n", b"\r\n" * 50):
        talk(url, garbage).close()
    assert client.get("/ready").status_code == 200
    assert state(service) == before


def test_a_browser_that_takes_the_service_for_another_site_is_refused(url: str, service: Service) -> None:
    before = state(service)
    starts = ["GET /", "GET /stats", "GET /bank", "POST /predict", "POST /reset", "GET /openapi.json", "GET /nowhere"]
    for start, name in product(starts, ["elsewhere.example", "x.localhost:80", "[::1", "a b", "\xff", ""]):
        rest = "Sec-Fetch-Site: same-origin\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        answer = answer_of(talk(url, f"{start} HTTP/1.1\r\nHost: {name}\r\n{rest}".encode("latin-1")))
        assert answer.split()[1] in (b"400", b"421"), (start, name, answer)
    assert state(service) == before


def state(service: Service) -> Any:
    """All that could have changed."""
    settle: Callable[[], None] = lambda: None  # noqa: E731
    writer_of(service).thread.submit(settle).result(10)
    report = service.writer.report()
    return service.adapter.stats, report.version, report.counters, service.predicted


def talk(url: str, request: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(request)
    return connection


def answer_of(connection: socket.socket) -> bytes:
    with connection:
        found = b""
        while more := connection.recv(65_536):
            found += more
    return found


def flood(connection: socket.socket) -> None:
    """Send without end; the service must hang up."""
    deadline = time.monotonic() + 20
    with connection:
        while time.monotonic() < deadline:
            try:
                connection.sendall(b"8000\r\n" + bytes(0x8000) + b"\r\n")
            except OSError:
                return
    raise AssertionError("the service listened for 20 s")
