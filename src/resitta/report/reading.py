"""Records from folders, and what they were made with."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from resitta.bench.record import RunRecord, load, read_json
from resitta.errors import BadData
from resitta.report.identity import from_folder


def read_folders(folders: Sequence[Path]) -> list[RunRecord]:
    """Read every record of some folders; with several, each run knows its folder."""
    runs = []
    for folder, name in zip(folders, _names(folders), strict=True):
        paths = record_paths(folder)
        if not paths:
            raise BadData(f"{folder} holds no records (*.json); give the --out folder of a bench")
        found = [load(path) for path in paths]
        runs += [from_folder(run, name) for run in found] if len(folders) > 1 else found
    return runs


def record_paths(folder: Path) -> list[Path]:
    """The files of a folder's records."""
    return sorted(folder.glob("*.json"))


def paths_of(runs: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Those files of a folder that hold some of these runs; other files are passed over."""
    return [path for path in record_paths(folder) if _holds_one_of(path, runs)]


def environment_of(paths: Iterable[Path]) -> dict[str, str]:
    """The versions and hardware that records were made with; where they differ, all of them."""
    found: dict[str, list[str]] = {}
    for path in paths:
        made_with: dict[str, Any] = read_json(path).get("environment", {})
        for key, value in made_with.items():
            found.setdefault(key, []).append(str(value))
    return {key: " or ".join(dict.fromkeys(values)) for key, values in found.items()}


def _holds_one_of(path: Path, runs: Sequence[RunRecord]) -> bool:
    try:
        return load(path) in runs
    except BadData:
        return False


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or their paths where two have the same."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
