"""Atomic file writes: a reader sees the old content or the new one, never a part of it."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from resitta.errors import NotSaved


def write_atomically(path: Path, data: bytes | bytearray) -> None:
    """Write bytes to a file, atomically and durably."""
    with atomic_write(path, size=len(data)) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def atomic_write(path: Path, *, durable: bool = True, size: int | None = None) -> Iterator[Path]:
    """Lend a temporary path beside `path`; the file written there replaces `path` when the block succeeds.

    `durable` syncs the file and its folder to the disk; files that can be made again need not wait for that.
    `size` is named in the message about a full disk.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    kept = "What was saved there before is untouched"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if durable:
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
        kept = "The new file is in place all the same, but may not survive a power failure"
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        raise NotSaved(_explain(error, path, size, kept)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power failure, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explain(error: OSError, path: Path, size: int | None, kept: str) -> str:
    remedy = "check the path and its permissions"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = f"{'' if size is None else f'it takes {size:,} bytes; '}make room on the disk"
    return f"{path} could not be written ({error.strerror or error}): {remedy}. {kept}."
