"""Save an adapter again and again while it runs, and find the newest good file after a crash."""

import logging
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from resitta.checkpoint.io import StatePath, read_document
from resitta.checkpoint.state_lock import Claim
from resitta.errors import BadSetting, BadState, NotSaved
from resitta.monitor.callbacks import Callback

logger = logging.getLogger(__name__)
NAME = "state-{}.safetensors"


class Autosave(Callback):
    """Write a numbered file into a folder of its own every so many updates, every so many seconds, or both.

    A save that fails, say because the disk is full, is logged and tried again when the next one is due: the stream
    goes on, and the older files stay. Attach it after the guards, so that it sees what they have made of a step.

    A folder has one writer: it is locked until `close`, until the adapter is gone, or until the process ends. A copy
    of the adapter, also one that a fork makes, does not save; watch it with an `Autosave` of its own folder.

    Args:
        folder: where the files go; one folder per adapter, held by nobody else.
        updates: save after this many further updates.
        seconds: save after this much time.
        keep: how many files to keep, the newest ones.

    >>> import tempfile, torch, resitta
    >>> from torch import nn
    >>> model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))
    >>> adapter, folder = resitta.adapt(model, "tent"), tempfile.TemporaryDirectory()
    >>> adapter.add_callback(Autosave(folder.name, updates=2, keep=3))
    >>> for _ in range(10):
    ...     _ = adapter(torch.rand(8, 3, 2, 2))
    >>> [path.name for path in saved(folder.name)]
    ['state-0000000005.safetensors', 'state-0000000004.safetensors', 'state-0000000003.safetensors']
    >>> resitta.recover(model, folder.name).stats.updates
    10
    """

    def __init__(
        self, folder: StatePath, *, updates: int | None = None, seconds: float | None = None, keep: int = 3
    ) -> None:
        if updates is None and seconds is None:
            raise BadSetting("autosave needs updates=, seconds= or both, found neither; say how often to save")
        for name, value, least in (("updates", updates, 1), ("seconds", seconds, 0), ("keep", keep, 1)):
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise BadSetting(f"{name} must be a number of at least {least}, found {value!r}")
        self.folder, self.updates, self.seconds, self.keep = Path(folder), updates, seconds, keep
        self.claim = Claim(self.folder)
        self.saved_updates: int | None = None
        self.saved_time = time.monotonic()
        self.failures = 0

    def before_step(self, adapter: Any, images: Tensor) -> None:
        """Count from the first step on: an adapter that was recovered has updates already."""
        if self.saved_updates is None:
            self.saved_updates = adapter.learner.updates

    def after_step(self, adapter: Any, images: Tensor, logits: Tensor) -> None:
        """Save if it is time to."""
        if not self.claim.held:
            return
        further = abs(adapter.learner.updates - (self.saved_updates or 0))  # after a reset there are fewer
        by_updates = self.updates is not None and further >= self.updates
        by_time = self.seconds is not None and time.monotonic() - self.saved_time >= self.seconds
        if by_updates or by_time:
            self.save(adapter)

    def save(self, adapter: Any) -> None:
        """Save now, and remove what is beyond `keep`."""
        if not self.claim.held:
            reason = "this autosave was closed, or belongs to the process that this one was forked from"
            raise NotSaved(f"nothing is written to {self.folder}: {reason}; make another one")
        self.saved_updates, self.saved_time = adapter.learner.updates, time.monotonic()
        try:
            adapter.save(self._next())
            self._prune()
        except OSError as error:
            self.failures += 1
            logger.error("autosave failed, the stream goes on: %s", error)

    def close(self) -> None:
        """Save no more, and let another writer have the folder."""
        self.claim.release()

    def _next(self) -> Path:
        numbers = [int(path.stem.removeprefix("state-")) for path in saved(self.folder)]
        return self.folder / NAME.format(f"{max(numbers, default=0) + 1:010}")

    def _prune(self) -> None:
        surplus = saved(self.folder)[self.keep :]
        interrupted = self.folder.glob("state-*.tmp")
        for path in (*surplus, *interrupted):
            path.unlink(missing_ok=True)

    @staticmethod
    def latest(folder: StatePath) -> Path | None:
        """The newest file of an `Autosave` that verifies; worse ones are passed over with a warning in the log."""
        for path in saved(folder):
            try:
                read_document(path)
                return path
            except BadState as error:
                logger.warning("passing over a state: %s", error)
        return None


def saved(folder: StatePath) -> list[Path]:
    """The files that an `Autosave` wrote into a folder, newest first."""
    return sorted(Path(folder).glob(NAME.format("[0-9]" * 10)), reverse=True)


def newest_state(folder: StatePath) -> Path:
    """The newest file of an `Autosave` that verifies."""
    newest = Autosave.latest(folder)
    if newest is None:
        raise BadState(f"{folder} holds no state that verifies ({len(saved(folder))} files); begin with resitta.adapt")
    return newest
