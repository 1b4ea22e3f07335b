"""One writer per folder of states: two would overwrite and remove each other's files."""

import contextlib
import gc
import logging
import os
from pathlib import Path

from resitta.errors import BadSetting
from resitta.runtime.locks import called_in_forks

logger = logging.getLogger(__name__)
NAME = "writer.lock"


class Claim:
    """An exclusive lock on a folder, held until `release`, garbage collection or the end of the process.

    Writers are services and `Autosave`s, in this process or others. The lock file is never removed, since another
    process may hold it by then. The process id in it serves messages only.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._process = folder, os.getpid()
        self._file: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadSetting(f"no state can be kept in {folder} ({error.strerror}); choose another folder") from error
        _claims.add(self)
        try:
            self._lock(self._file)
        except BlockingIOError:
            holder = self._holder(self._file)
            self.let_go()
            sentence = f"{holder} keeps its state in {folder}; close or stop that one, or choose another folder"
            raise BadSetting(sentence) from None
        except (ImportError, OSError) as error:
            logger.warning("a second writer in %s cannot be excluded: there are no file locks here (%s)", folder, error)
        self._sign(self._file)

    def _lock(self, file: int) -> None:
        try:
            lock(file)
        except BlockingIOError:
            gc.collect()  # an unreachable adapter may still hold the folder
            lock(file)

    def _sign(self, file: int) -> None:
        """Write the process id; a full disk is no reason to fail."""
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.write(file, f"{self._process}\n".encode())

    def _holder(self, file: int) -> str:
        number = os.read(file, 20).decode(errors="replace").strip()
        if number == str(self._process):
            return f"another Autosave or service of this process ({number})"
        return f"process {number}" if number.isdecimal() else "another process"

    @property
    def held(self) -> bool:
        """Whether this process may write to the folder; false after `release` and in a fork."""
        return self._file is not None and self._process == os.getpid()

    def release(self) -> None:
        """Unlock the folder; a forked process only closes its copy of the file."""
        if self._file is not None and self.held:
            unlock(self._file)
        self.let_go()

    def let_go(self) -> None:
        """Close the file; that unlocks it unless a forked process has it open."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        self.release()


def lock(file: int) -> None:
    """Lock an open file, or raise BlockingIOError if it is locked, by this process or another."""
    import fcntl  # noqa: PLC0415  (only where there is POSIX)

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(file: int) -> None:
    """Unlock a file, also for processes that inherited it; without file locks there is nothing to do."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415  (only where there is POSIX)

        fcntl.flock(file, fcntl.LOCK_UN)


_claims = called_in_forks(Claim.let_go)  # an inherited file would keep the folder locked after the parent has ended
