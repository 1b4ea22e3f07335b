"""Snapshots on disk: files of `adapter.save`, numbered by their version, as an `Autosave` would name them.

So `resitta.recover(model, folder)` continues from the folder of a service without the service.
"""

import errno
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from resitta.adapter import Adapter
from resitta.checkpoint.autosave import NAME, saved
from resitta.errors import BadState
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused

logger = logging.getLogger(__name__)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StateFolder:
    """The snapshots of one service; the newest few are kept.

    >>> import tempfile
    >>> StateFolder(Path(tempfile.mkdtemp()), keep=2).versions()
    []
    """

    def __init__(self, path: Path, *, keep: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.keep = keep

    def versions(self) -> list[int]:
        """The versions of all snapshots, readable or not, the oldest first."""
        return sorted(int(file.stem.removeprefix("state-")) for file in saved(self.path))

    def save(self, adapter: Adapter, version: int) -> None:
        """Write a snapshot, and remove the oldest ones and those of later versions, which were taken back."""
        adapter.save(self._file(version))
        versions = self.versions()
        later = [other for other in versions if other > version]
        for surplus in (*versions[: -self.keep - len(later)], *later):
            self.remove(surplus)

    def remove(self, version: int) -> None:
        """Remove a snapshot, or leave it to the next save where the system refuses."""
        with suppress(OSError):
            self._file(version).unlink(missing_ok=True)

    def load(self, adapter: Adapter, version: int) -> None:
        """Bring an adapter to a snapshot; one that is damaged or of another adapter leaves this one as it was."""
        adapter.restore(self._file(version))

    def load_first(self, adapter: Adapter, versions: Iterable[int]) -> tuple[int, dict[int, str]]:
        """Load the first of some snapshots that can be read; where none can, raise what is wrong with the last one.

        Return its version, and why others were skipped, by their versions.
        """
        skipped: dict[int, str] = {}
        error = BadState(f"{self.path} holds no snapshot")
        for version in versions:
            try:
                self.load(adapter, version)
                return version, skipped
            except BadState as reason:
                error, skipped[version] = reason, str(reason)
                logger.warning("skipping the snapshot of version %d: %s", version, reason)
        raise error

    def recover(self, adapter: Adapter) -> dict[int, str]:
        """Continue from the newest snapshot that can be read, if there is one; return why newer ones were skipped."""
        for leftover in self.path.glob("*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink()
        versions = self.versions()
        return self.load_first(adapter, reversed(versions))[1] if versions else {}

    def _file(self, version: int) -> Path:
        return self.path / NAME.format(f"{version:010}")


class Saver:
    """Saves an adapter periodically, and on request. Only the writer's thread may use it."""

    def __init__(self, adapter: Adapter, folder: StateFolder, events: Events, *, every: float, version: int) -> None:
        self.adapter = adapter
        self.folder = folder
        self.events = events
        self.every = every
        self.failed = 0
        """How many snapshots could not be written."""
        self._fails = False
        self._saved = (version, adapter.samples)
        self._due = time.monotonic() + every

    @property
    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return time.monotonic() >= self._due

    def save(self, version: int) -> Exception | None:
        """Save the adapter as a version, if it is new, and return what went wrong.

        A failure, such as a full disk, is reported, and the next save that is due tries again.
        """
        self._due = time.monotonic() + self.every
        try:
            self._write(version)
        except Exception as error:  # whatever it is, predictions and learning do not depend on it
            self._note_failure(error)
            return error
        if self._fails:
            self.events.add("control", f"saving works again, version {version} saved")
        self._fails = False
        return None

    def _write(self, version: int) -> None:
        state = (version, self.adapter.samples)
        if state != self._saved or not self.folder.versions():
            self.folder.save(self.adapter, version)
            self._saved = state

    def _note_failure(self, error: Exception) -> None:
        self.failed += 1
        logger.error("the state was not saved, the service continues: %s", error)
        if not self._fails:  # one event, so that a full disk does not push out all others
            self.events.add("failure", f"the state is not saved: {error}"[:300])
        self._fails = True


def not_saved(what: str, error: Exception) -> Refused:
    """The answer to a request whose outcome could not be saved.

    >>> not_saved("the reset was not done", OSError(errno.ENOSPC, "No space left on device")).status
    507
    """
    cause = error.__cause__ or error
    status = 507 if isinstance(cause, OSError) and cause.errno in FULL else 503
    return Refused(status, f"{what}: {str(error) or type(error).__name__}"[:400])
