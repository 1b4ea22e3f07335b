"""The file format: safetensors, with the size and SHA-256 of the rest of the file in its header (the seal).

Files are verified before they are parsed. Any safetensors reader opens them; they contain no code.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from resitta.checkpoint.tree import put_together, take_apart
from resitta.errors import BadState, require

SEAL = re.compile(rb'"seal":"(\d{16})-([0-9a-f]{64})"')
BLANK = f"{0:016}-{0:064}"
LENGTH = 8
"""Bytes at the start of a safetensors file that hold the length of its header."""


def seal(document: dict[str, Any]) -> bytearray:
    """Turn a nested document into the bytes of a sealed file.

    >>> open_seal(seal({"lr": 0.1}), Path("state.safetensors"))
    {'lr': 0.1}
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(take_apart(document, tensors))
    data = bytearray(require("safetensors.torch", "state").save(tensors, {"document": text, "seal": BLANK}))
    mark = SEAL.search(data)
    assert mark is not None  # it was put in above
    data[mark.start(1) : mark.end(2)] = f"{len(data):016}-{_digest(data, mark)}".encode()
    return data


def open_seal(data: bytes | bytearray, path: Path) -> dict[str, Any]:
    """Verify the bytes of a file and return its document; errors name `path`."""
    header, load = _verified_header(data, path), require("safetensors.torch", "state").load
    try:
        text = json.loads(header)["__metadata__"]["document"]
        return dict(put_together(json.loads(text), load(bytes(data))))
    except Exception as error:  # the seal keeps accidents out; a file made by hand can hold anything
        raise BadState(f"{path} is sealed but holds no state ({error}); save it again") from error


def read(path: Path) -> dict[str, Any]:
    """Read a sealed file."""
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        raise BadState(f"{path} is a folder; name a file in it, or call resitta.recover(model, folder)") from error
    except FileNotFoundError as error:
        raise BadState(f"there is no state at {path}; check the path") from error
    except (OSError, ValueError) as error:
        raise BadState(f"{path} cannot be read ({error}); check the path, its permissions and the disk") from error
    return open_seal(data, path)


def _verified_header(data: bytes | bytearray, path: Path) -> bytes:
    """Return the header if no byte of the file is missing, surplus or changed."""
    if data[LENGTH : LENGTH + 1] != b"{":
        raise BadState(f"{path} is not a safetensors file; name one that adapter.save wrote")
    end = LENGTH + int.from_bytes(data[:LENGTH], "little")
    mark = SEAL.search(data, 0, min(end, len(data)))
    if mark is None:
        lost = "is cut off within its header" if end > len(data) else "has no seal of a state"
        raise BadState(f"{path} {lost}; name a whole file that adapter.save wrote")
    if len(data) != int(mark[1]):
        raise BadState(f"{path} is truncated or grown: {len(data)} bytes instead of {int(mark[1])}; use another copy")
    if _digest(data, mark) != mark[2].decode():
        raise BadState(f"{path} is damaged: its bytes do not match their checksum; use another copy")
    return bytes(data[LENGTH:end])


def _digest(data: bytes | bytearray, mark: re.Match[bytes]) -> str:
    """SHA-256 of all bytes around the seal."""
    view = memoryview(data)
    digest = hashlib.sha256(view[: mark.start()])
    digest.update(view[mark.end() :])
    return digest.hexdigest()
