"""Write a file at once or not at all, so that whoever reads it sees the old content or the new."""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from resitta.errors import NotSaved


def write_atomically(path: Path, data: bytes | bytearray) -> None:
    """Write a temporary file beside the target, bring it to the disk, and rename it.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_atomically(Path(folder.name) / "new" / "file", b"content")
    >>> (Path(folder.name) / "new" / "file").read_bytes()
    b'content'
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    kept = "What was saved there before is untouched"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        kept = "The new file is in place all the same, but may not survive a power failure"
        _sync_folder(path.parent)
    except OSError as error:
        raise NotSaved(_explain(error, path, len(data), kept)) from error
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


def _explain(error: OSError, path: Path, size: int, kept: str) -> str:
    remedy = "check the path and its permissions"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = f"it takes {size:,} bytes; make room on the disk"
    return f"{path} could not be written ({error.strerror}): {remedy}. {kept}."
