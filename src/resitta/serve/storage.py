"""Snapshots on disk: files of `adapter.save`, numbered by their version, as an `Autosave` would name them.

So `resitta.recover(model, folder)` goes on from the folder of a service without the service.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from resitta.adapter import Adapter
from resitta.checkpoint.autosave import NAME, saved
from resitta.errors import BadState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """Which snapshot was loaded, None where there was none, and why newer ones were skipped, by their versions.

    >>> Loaded(3, {5: "state-0000000005.safetensors is damaged"}).version
    3
    """

    version: int | None
    skipped: dict[int, str] = field(default_factory=dict)


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

    def load_first(self, adapter: Adapter, versions: Iterable[int]) -> Loaded:
        """Load the first of some snapshots that can be read; where none can, raise what is wrong with the last one."""
        skipped: dict[int, str] = {}
        error = BadState(f"{self.path} holds no snapshot")
        for version in versions:
            try:
                self.load(adapter, version)
                return Loaded(version, skipped)
            except BadState as reason:
                error, skipped[version] = reason, str(reason)
                logger.warning("skipping the snapshot of version %d: %s", version, reason)
        raise error

    def recover(self, adapter: Adapter) -> Loaded:
        """Continue from the newest snapshot that can be read; where there is none, the adapter stays as it is."""
        for leftover in self.path.glob("*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink()
        versions = self.versions()
        return self.load_first(adapter, reversed(versions)) if versions else Loaded(None)

    def _file(self, version: int) -> Path:
        return self.path / NAME.format(f"{version:010}")
