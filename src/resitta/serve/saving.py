"""When snapshots are written, and what is said when that fails."""

import errno
import logging
import time

from resitta.adapter import Adapter
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.storage import StateFolder

logger = logging.getLogger(__name__)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Saver:
    """Saves an adapter from time to time, and when asked. Only the writer's thread may use it.

    `failed` counts snapshots that could not be written.
    """

    def __init__(self, adapter: Adapter, folder: StateFolder, events: Events, *, every: float, version: int) -> None:
        self.adapter = adapter
        self.folder = folder
        self.events = events
        self.every = every
        self.failed = 0
        self._fails = False
        self._saved = (version, adapter.samples)
        self._due = time.monotonic() + every

    @property
    def is_due(self) -> bool:
        """Whether it is time for a snapshot."""
        return time.monotonic() >= self._due

    def save(self, version: int) -> Exception | None:
        """Save the adapter as a version, if it is new, and return what went wrong.

        A failure, such as a full disk, is told, and the next save that is due tries again.
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
        logger.error("the state was not saved, the service goes on: %s", error)
        if not self._fails:  # an event when it begins, lest a full disk pushes all others out
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
