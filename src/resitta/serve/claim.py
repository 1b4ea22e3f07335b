"""One service per folder of states: two would overwrite each other's snapshots."""

import logging
from pathlib import Path
from typing import IO

from resitta.errors import BadSetting

logger = logging.getLogger(__name__)
NAME = "service.lock"


class Claim:
    """Keeps other services out of a folder until it is released, or until the process ends, however it ends.

    The file stays behind: who removed it could remove the claim of another. Only its lock counts.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> claim = Claim(folder)
    >>> claim.release()
    >>> Claim(folder).release()
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / NAME).open("a", encoding="ascii")
        except OSError as error:
            raise BadSetting(f"no state can be kept in {folder} ({error.strerror}); choose another folder") from error
        try:
            lock(self._file)
        except BlockingIOError:
            self.release()
            sentence = f"another service keeps its state in {folder}; stop that one, or choose another folder"
            raise BadSetting(sentence) from None
        except (ImportError, OSError) as error:
            logger.warning("nothing keeps a second service out of %s: there are no file locks here (%s)", folder, error)

    def release(self) -> None:
        """Let others in."""
        self._file.close()


def lock(file: IO[str]) -> None:
    """Lock an open file for this process, or raise BlockingIOError if another one has locked it."""
    import fcntl  # noqa: PLC0415  (only where there is POSIX)

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
