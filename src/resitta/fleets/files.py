"""One file for each stream of a fleet, in the format of `adapter.save`, in a folder with one writer."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from resitta.checkpoint import io as store
from resitta.checkpoint.state_lock import Claim
from resitta.errors import BadSetting, BadState
from resitta.method import AdapterLike

SUFFIX = ".safetensors"
LONGEST = 220
"""Bytes of a file's name without its ending: file systems take 255, of which temporary names need some."""


class StreamFiles:
    """The saved streams of a fleet. A file is replaced as a whole: it holds the old state or the new one.

    >>> import tempfile
    >>> files = StreamFiles(Path(tempfile.mkdtemp()))
    >>> files.path("Hall 3/east").name
    'stream-%48all%203%2Feast.safetensors'
    >>> list(files.names())
    []
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.claim = Claim(folder)
        for interrupted in folder.glob("stream-*.tmp"):
            interrupted.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """The file of a stream. Capitals are written as codes, since some file systems do not tell them apart."""
        return self.folder / f"stream-{encoded(name)}{SUFFIX}"

    def names(self) -> Iterator[str]:
        """The streams that are saved."""
        for path in sorted(self.folder.glob(f"stream-*{SUFFIX}")):
            yield unquote(path.name.removeprefix("stream-").removesuffix(SUFFIX))

    def save(self, name: str, adapter: AdapterLike, appearance: dict[str, Any]) -> None:
        """Write a stream's state."""
        if not self.claim.held:
            reason = "this fleet was closed, or belongs to the process that this one was forked from"
            raise BadSetting(f"nothing is written to {self.folder}: {reason}; make another fleet")
        store.save(adapter, self.path(name), stream={"name": name, "appearance": appearance})

    def restore(self, name: str, adapter: AdapterLike) -> dict[str, Any]:
        """Continue a stream from its file; return what was saved of its appearance."""
        about = store.restore(adapter, self.path(name)).get("stream")
        if not isinstance(about, dict) or about.get("name") != name or not isinstance(about.get("appearance"), dict):
            raise BadState(f"{self.path(name)} holds no stream called {name!r}; move the file elsewhere")
        return dict(about["appearance"])

    def remove(self, name: str) -> None:
        """Delete a stream's file, if there is one."""
        self.path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder to other writers."""
        self.claim.release()


def encoded(name: str) -> str:
    """Write a name as part of a file's name.

    >>> encoded("camera-3"), encoded("Küche")
    ('camera-3', '%4B%C3%BCche')
    """
    return "".join(f"%{ord(c):02X}" if c.isascii() and c.isupper() else quote(c, safe="") for c in name)


@lru_cache(maxsize=2**16)
def _length(name: str) -> int:
    return len(encoded(name))


def check_name(name: object) -> str:
    """Refuse what cannot name a stream."""
    if not isinstance(name, str) or not name:
        raise BadSetting(f"a stream's name must be a string of one character or more, found {name!r}")
    try:
        length = _length(name)
    except UnicodeEncodeError as error:
        raise BadSetting(f"a stream's name must be valid Unicode, found {name!r}; rename the stream") from error
    if length > LONGEST:
        found = f"{name[:20]!r}... takes {length}"
        raise BadSetting(f"a stream's name may take {LONGEST} bytes as part of a file name, {found}; shorten it")
    return name
