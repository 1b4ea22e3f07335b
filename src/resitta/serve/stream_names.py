"""What the streams of a service are called: by their clients, and among those of all clients."""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Header, Query

from resitta.checkpoint.atomic_write import write_atomically
from resitta.serve.http_errors import Refused
from resitta.serve.security import TOKEN_KEY

NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
UNNAMED = "default"
"""The stream of requests that name none."""
KEY_FILE, KEY_BYTES = "clients.key", 16
"""The key of the pseudonyms, kept beside the streams so that these are found again."""


def stream_name(header: str | None, parameter: str | None = None) -> str:
    """Check the name of a stream, from the header X-Stream or the parameter stream; the empty name is that of none.

    >>> stream_name("camera-3"), stream_name(None, "camera-4"), stream_name(None)
    ('camera-3', 'camera-4', '')
    >>> stream_name("camera 3")
    Traceback (most recent call last):
        ...
    resitta.serve.http_errors.Refused: X-Stream must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -, found 'camera 3'
    """
    if header is not None and parameter is not None and header != parameter:
        found = f"X-Stream {header[:64]!r} and stream {parameter[:64]!r}"
        raise Refused(400, f"a request belongs to one stream, found {found}; leave out one of them")
    for what, name in (("X-Stream", header), ("stream", parameter)):
        if name is not None and not NAME.fullmatch(name):
            wanted = "1 to 64 of the characters A-Z a-z 0-9 . _ : -"
            raise Refused(400, f"{what} must be {wanted}, found {name[:64]!r}")
    return header or parameter or ""


ABOUT = "The stream that the images come from, in this order: of a fleet, or for the label prior."
PATTERN = {"pattern": f"^{NAME.pattern}$"}
"""For the schema; `stream_name` checks it."""


async def stream_of_request(
    x_stream: Annotated[str | None, Header(description=ABOUT, json_schema_extra=PATTERN)] = None,
    stream: Annotated[str | None, Query(description="The same as X-Stream.", json_schema_extra=PATTERN)] = None,
) -> str:
    """Read the name from a request."""
    return stream_name(x_stream, stream)


StreamName = Annotated[str, Depends(stream_of_request)]


class StreamNames:
    """The names of a fleet's streams: no two clients share one, and none tells a client's address.

    A client with the service's token gives names as they are. Those of any other client begin with a pseudonym of it,
    which lasts as long as the folder.

    >>> names = StreamNames(b"key")
    >>> names.of("token:5f3a", "camera-3"), names.of("token:5f3a", "")
    ('camera-3', 'default')
    >>> names.of("192.0.2.7", "camera-3"), names.of("192.0.2.8", "camera-3")
    ('4ed198fc466f/camera-3', '10516af188e6/camera-3')
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of_folder(cls, folder: Path) -> "StreamNames":
        """Use the folder's key; make one if there is none."""
        file = folder / KEY_FILE
        if not file.exists():
            write_atomically(file, secrets.token_bytes(KEY_BYTES))
        return cls(file.read_bytes())

    def of(self, client: str, name: str) -> str:
        """The name among all streams of one that a client calls so."""
        if client.startswith(TOKEN_KEY):
            return name or UNNAMED
        pseudonym = hashlib.blake2s(client.encode(), key=self._key, digest_size=6).hexdigest()
        return f"{pseudonym}/{name or UNNAMED}"
