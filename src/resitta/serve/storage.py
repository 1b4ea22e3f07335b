"""Snapshots on disk: files of `adapter.save`, numbered by their version, as an `Autosave` would name them.

So `resitta.recover(model, folder)` goes on from the folder of a service without the service.
"""

from pathlib import Path

from resitta.adapter import Adapter
from resitta.errors import BadState
from resitta.state.autosave import NAME, saved


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
        """The versions that can be gone back to, the oldest first."""
        return sorted(int(file.stem.removeprefix("state-")) for file in saved(self.path))

    def save(self, adapter: Adapter, version: int) -> None:
        """Write a snapshot and let the oldest ones go."""
        adapter.save(self._file(version))
        for old in self.versions()[: -self.keep]:
            self._file(old).unlink(missing_ok=True)

    def load(self, adapter: Adapter, version: int) -> None:
        """Bring an adapter to a snapshot; one that is damaged or of another adapter leaves this one as it was."""
        adapter.restore(self._file(version))

    def recover(self, adapter: Adapter) -> int:
        """Continue from the newest snapshot that can be read and return the newest version; 0 where there is none."""
        for leftover in self.path.glob("*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink()
        versions = self.versions()
        for version in reversed(versions):
            try:
                self.load(adapter, version)
                break
            except BadState:
                if version == versions[0]:
                    raise
        return versions[-1] if versions else 0

    def _file(self, version: int) -> Path:
        return self.path / NAME.format(f"{version:010}")
