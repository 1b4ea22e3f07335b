"""A web server on this machine that misbehaves on request."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server(ThreadingHTTPServer):
    """Serves `body` at every path; each request uses up one word of `script`, then all goes well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = b""
        self.script: list[str] = []
        self.asked: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(dict(self.headers))
        word = self.server.script.pop(0) if self.server.script else "well"
        if word.isdecimal():
            self.send_error(int(word))
        elif word == "html":
            self._send(b"<html>maintenance</html>", kind="text/html; charset=utf-8")
        elif word == "silent":
            time.sleep(1)
        elif word == "cut":
            self._send_range(self.server.body[: len(self.server.body) // 2], len(self.server.body))
        elif word == "promise-less":
            self._send(self.server.body, length=len(self.server.body) // 2)
        elif word == "promise-more":
            self._send(self.server.body, length=len(self.server.body) + 100)
        elif word == "no-length":
            self._send(self.server.body, length=None)
        elif word == "endless":
            self._send_without_end()
        elif word == "no-range":
            self._send(self.server.body)
        elif word == "wrong-range":
            self._send(self.server.body, status=206, content_range=f"bytes 1-2/{len(self.server.body)}")
        elif word == "blind":  # to If-Range
            del self.headers["If-Range"]
            self._send_range(self.server.body, len(self.server.body))
        else:
            self._send_range(self.server.body, len(self.server.body))

    def _send_without_end(self) -> None:
        """Send until the client hangs up, at most 64 MB."""
        self._send(b"", length=None)
        with contextlib.suppress(OSError):
            for _ in range(64):
                self.wfile.write(bytes(1 << 20))

    def _send_range(self, body: bytes, total: int) -> None:
        etag = f'"{hashlib.md5(self.server.body).hexdigest()}"'
        wanted = self.headers.get("Range")
        if wanted is None or self.headers.get("If-Range", etag) != etag:
            self._send(body, length=total, etag=etag)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= total:
            self._send(b"", status=416, content_range=f"bytes */{total}")
        else:
            span = f"bytes {start}-{total - 1}/{total}"
            self._send(body[start:], status=206, length=total - start, content_range=span, etag=etag)

    def _send(
        self,
        body: bytes,
        *,
        status: int = 200,
        length: int | None = -1,
        kind: str = "application/octet-stream",
        content_range: str = "",
        etag: str = "",
    ) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Range": content_range, "ETag": etag}
        if length is not None:
            headers["Content-Length"] = str(len(body) if length == -1 else length)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
