"""Snapshots on disk: the whole state of an adapter in one safetensors file, written at once or not at all.

Only tensors and JSON are ever read back, so a file from elsewhere cannot run code.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from resitta.adapter import Adapter
from resitta.errors import BadState


def save(adapter: Adapter, path: Path) -> None:
    """Write the state; a crash at any moment leaves the old file or the new one."""
    tensors: dict[str, torch.Tensor] = {}
    layout = _flatten(dict(adapter.state_dict()), tensors)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    save_file(tensors, temporary, metadata={"state": json.dumps(layout)})
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.replace(path)


def load(adapter: Adapter, path: Path) -> None:
    """Continue from a file; one that is damaged or of another adapter leaves this one as it was."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
            state = _rebuild(json.loads(file.metadata()["state"]), tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadState(f"{path} is no snapshot of a service ({type(error).__name__}); remove it") from error
    adapter.load_state_dict(state)


def _flatten(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Put tensors aside under numbers and describe the rest as JSON; dicts become pairs, so that any key is kept."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, _flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_flatten(item, tensors) for item in value]
    return value


def _rebuild(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Undo `_flatten`."""
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _rebuild(item, tensors) for key, item in value["pairs"]}
    return [_rebuild(item, tensors) for item in value] if isinstance(value, list) else value


class StateFolder:
    """The snapshots of one service, named by their version; the newest few are kept.

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
        stems = (file.stem.removeprefix("state-") for file in self.path.glob("state-*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def save(self, adapter: Adapter, version: int) -> None:
        """Write a snapshot and let the oldest ones go."""
        save(adapter, self._file(version))
        for old in self.versions()[: -self.keep]:
            self._file(old).unlink(missing_ok=True)

    def load(self, adapter: Adapter, version: int) -> None:
        """Bring an adapter to a snapshot."""
        load(adapter, self._file(version))

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
        return self.path / f"state-{version:012d}.safetensors"
