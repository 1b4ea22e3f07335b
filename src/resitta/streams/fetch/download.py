"""Download one large file over a connection that may break: resume, retry, and give up with a clear sentence."""

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resitta.errors import BadData
from resitta.streams.fetch.space import check_space

Progress = Callable[[int, int | None], None]
CHUNK = 1 << 20
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to insist: attempts in a row that bring nothing new, the first pause, and silence, in seconds.

    The pause doubles from attempt to attempt.
    """

    attempts: int = 5
    pause: float = 1.0
    timeout: float = 30.0


PATIENT = Patience()


class _Interrupted(Exception):
    """This attempt failed, the next one may not."""


def download(
    url: str, part: Path, *, progress: Progress | None = None, patience: Patience = PATIENT
) -> None:
    """Download `url` to the file `part`, going on from what it already holds.

    Whether the contents are right is for the caller to check: a length can agree by accident, a checksum not.
    `progress` is called with the bytes that are there and the total, None where the server does not say.
    """
    transfer = _Transfer(url, part, progress, patience.timeout)
    failures = most = 0
    while True:
        try:
            return transfer.attempt()
        except _Interrupted as why:
            have = _size(part)
            failures = 1 if have > most else failures + 1
            most = max(have, most)
            if failures >= patience.attempts:
                raise BadData(
                    f"{url} could not be downloaded ({why}; {failures} attempts in a row); "
                    f"{have} bytes are kept in {part}: call again to go on from there."
                ) from why
        time.sleep(patience.pause * 2 ** (failures - 1))


class _Transfer:
    """What is known about the file on the server, from one attempt to the next."""

    def __init__(self, url: str, part: Path, progress: Progress | None, timeout: float) -> None:
        self.url, self.part, self.timeout = url, part, timeout
        self.progress: Progress = progress or (lambda done, total: None)
        self.total: int | None = None
        self.etag: str | None = None

    def attempt(self) -> None:
        """Ask for what is missing and append it; raise `_Interrupted` when it stays incomplete."""
        have = _size(self.part)
        with self._open(have) as response:
            if response is None:
                return
