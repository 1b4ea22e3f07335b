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
    """The snapshots of one service; the newest few are kept."""

    def __init__(self, path: Path, *, keep: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.keep = keep

    def versions(self) -> list[int]:
        """The versions of all snapshots, readable or not, the oldest first."""
        return sorted(int(file.stem.removeprefix("state-")) for file in saved(self.path))

    def times(self) -> dict[int, float]:
        """When each snapshot was written, in seconds since 1970."""
        found: dict[int, float] = {}
        for version in self.versions():
            with suppress(OSError):  # it may be removed meanwhile
                found[version] = self._file(version).stat().st_mtime
        return found

    def save(self, adapter: Adapter, version: int) -> None:
        """Write a snapshot; remove the oldest ones, and those of later versions, which were rolled back."""
        adapter.save(self._file(version))
        versions = self.versions()
        later = [other for other in versions if other > version]
        for surplus in (*versions[: -self.keep - len(later)], *later):
            self.remove(surplus)

    def remove(self, version: int) -> None:
        """Remove a snapshot; if the system refuses, the next save tries again."""
        with suppress(OSError):
            self._file(version).unlink(missing_ok=True)

    def load_first(self, adapter: Adapter, versions: Iterable[int]) -> tuple[int, dict[int, str]]:
        """Load the first readable snapshot; return its version, and why others were skipped, by version.

        If none is readable, raise the error of the last one and leave the adapter unchanged.
        """
        skipped: dict[int, str] = {}
        error = BadState(f"{self.path} holds no snapshot")
        for version in versions:
            try:
                adapter.restore(self._file(version))
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


class SaveFailures:
    """Counts what could not be written. One event tells the first of several, so that a full disk pushes out no others.

    >>> failures = SaveFailures(Events())
    >>> failures.add(OSError("disk full"))
    >>> failures.end("all saved")
    >>> failures.count, [event.text for event in failures.events.newest()]
    (1, ['saving works again, all saved', 'the state is not saved: disk full'])
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self.count = 0
        self._last = False

    def add(self, error: Exception) -> None:
        """Report an error; predictions and learning do not depend on it."""
        self.count += 1
        logger.error("the state was not saved, the service continues: %s", error)
        if not self._last:
            self.events.add("failure", f"the state is not saved: {error}"[:300])
        self._last = True

    def end(self, what: str) -> None:
        """Report that something was saved, if saving failed before."""
        if self._last:
            self.events.add("control", f"saving works again, {what}")
        self._last = False


class Saver:
    """Saves an adapter periodically, and on request. Only the writer's thread may use it."""

    def __init__(self, adapter: Adapter, folder: StateFolder, events: Events, *, every: float, version: int) -> None:
        self.adapter = adapter
        self.folder = folder
        self.every = every
        self.failures = SaveFailures(events)
        self._saved = self._state(version)
        self._due = time.monotonic() + every

    @property
    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return time.monotonic() >= self._due

    def save(self, version: int) -> Exception | None:
        """Save the adapter as a version, if it is new, and return the error, if any.

        A failure, such as a full disk, is reported; the next save that is due tries again.
        """
        self._due = time.monotonic() + self.every
        state = self._state(version)
        try:
            if state != self._saved or not self.folder.versions():
                self.folder.save(self.adapter, version)
                self._saved = state
        except Exception as error:
            self.failures.add(error)
            return error
        self.failures.end(f"version {version} saved")
        return None

    def _state(self, version: int) -> tuple[int, int, bool]:
        """What is worth a snapshot when it changes."""
        shadow = self.adapter.shadow
        return version, self.adapter.samples, shadow is not None and shadow.falling_back


def not_saved(what: str, error: Exception) -> Refused:
    """The response to a request whose result could not be saved.

    >>> not_saved("the reset was not done", OSError(errno.ENOSPC, "No space left on device")).status
    507
    """
    cause = error.__cause__ or error
    status = 507 if isinstance(cause, OSError) and cause.errno in FULL else 503
    return Refused(status, f"{what}: {str(error) or type(error).__name__}"[:400])
