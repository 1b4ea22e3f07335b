"""Resumable download of one large file, with retries and exponential backoff."""

import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn

from resitta.errors import BadData


def check_space(folder: Path, need: int, what: str) -> None:
    """Raise BadData if the disk has too little free space."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise BadData(
            f"{what} needs {need / 1e9:.1f} GB in {folder}, but only {free / 1e9:.1f} GB are free; "
            "make room or choose another folder."
        )


Progress = Callable[[int, int | None], None]
CHUNK = 1 << 20
MOST = 1 << 36
"""The default size limit: more than twice the largest public archive."""
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When to give up: after this many `attempts` in a row without new data.

    `pause`: seconds of backoff after the first failure, doubled after each further one. `timeout`: seconds for a
    response.
    """

    attempts: int = 5
    pause: float = 1.0
    timeout: float = 30.0


PATIENT = Patience()


class _Interrupted(Exception):
    """This attempt failed; the next one may not."""


def download(
    url: str, part: Path, *, progress: Progress | None = None, patience: Patience = PATIENT, most: int = MOST
) -> None:
    """Download `url` to the file `part`, resuming what it already holds; the caller verifies a checksum.

    `progress` is called with the bytes received and the total, None if unknown. A file of more than `most` bytes is
    refused: at once if the server announces its size, else as soon as it exceeds the limit.
    """
    transfer = _Transfer(url, part, progress, patience.timeout, most)
    failures, most = 0, _size(part)
    while True:
        try:
            return transfer.attempt()
        except _Interrupted as why:
            have = _size(part)
            failures = 0 if have > most else failures + 1
            most = max(have, most)
            if failures >= patience.attempts:
                raise BadData(
                    f"{url} could not be downloaded ({why}; {failures} attempts in a row); "
                    f"{have} bytes are kept in {part}: call again to go on from there."
                ) from why
        time.sleep(patience.pause * 2 ** (failures - 1))


class _Transfer:
    """One file on a server: its size and ETag, as earlier attempts saw them."""

    def __init__(self, url: str, part: Path, progress: Progress | None, timeout: float, most: int) -> None:
        self._url, self._part, self._progress, self._timeout, self._most = url, part, progress, timeout, most
        self._total: int | None = None
        self._etag: str | None = None

    def attempt(self) -> None:
        """Ask for what is missing and append it; raise `_Interrupted` when it stays incomplete."""
        have = _size(self._part)
        with _network(self._url):
            response = self._open(have)
        if response is None:
            return
        with response:
            if response.headers.get_content_type() == "text/html":
                raise BadData(f"{self._url} is a web page, not the file; open it in a browser to see why.")
            start, total = _span(response)
            if start not in (0, have) or (start and self._total not in (None, total)):
                self._start_over()
            self._total, self._etag = total, response.headers.get("ETag")
            self._append(response, start)

    def _open(self, have: int) -> http.client.HTTPResponse | None:
        """Send the request; None means that nothing is missing."""
        headers = {"User-Agent": "resitta"}
        if have:
            headers["Range"] = f"bytes={have}-"
        if have and self._etag and not self._etag.startswith("W/"):  # weak ones may not be used here
            headers["If-Range"] = self._etag
        request = urllib.request.Request(self._url, headers=headers)
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            error.close()
            if error.headers.get("Content-Range") != f"bytes */{have}":
                self._start_over()
            return None
        return response

    def _start_over(self) -> NoReturn:
        self._part.unlink()
        self._total = self._etag = None
        raise _Interrupted("the file on the server is not the one that was begun")

    def _check_size(self, size: int) -> None:
        """Refuse a file that is too large, and delete its part."""
        if size > self._most:
            self._part.unlink(missing_ok=True)
            found = f"{size:,} bytes or more, at most {self._most:,} were expected"
            raise BadData(f"{self._url} gave {found}; check the address, or try a mirror.")

    def _append(self, response: http.client.HTTPResponse, done: int) -> None:
        self._check_size(self._total or 0)
        if self._total is not None:
            # what is missing of the archive, and as much again to unpack it
            check_space(self._part.parent, 2 * self._total - done, self._part.name)
        with self._part.open("ab" if done else "wb") as file:
            for chunk in _chunks(response, self._url):
                done += len(chunk)
                self._check_size(done)
                file.write(chunk)
                if self._progress is not None:
                    self._progress(done, self._total)
        if self._total is not None and done < self._total:
            raise _Interrupted(f"the connection ended after {done} of {self._total} bytes")


def _span(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return where the answer begins in the file and how long the file is.

    A server that ignores ranges, or whose file has changed since, sends the whole file.
    """
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        return (int(found[1]), int(found[2])) if found else (-1, None)
    return 0, response.length


def _chunks(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    while True:
        with _network(url):
            chunk = response.read(CHUNK)
        if not chunk:
            return
        yield chunk


@contextmanager
def _network(url: str) -> Iterator[None]:
    """Raise `_Interrupted` for transient errors, `BadData` for permanent ones."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in TRANSIENT:
            raise _Interrupted(f"it answered {error.code} {error.reason}") from error
        raise BadData(f"{url} answered {error.code} {error.reason}; check the address or try a mirror.") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
