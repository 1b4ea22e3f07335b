"""What defines a run beside its seed. Runs are averaged only where all of it is equal."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from resitta.bench.record import RunRecord

FOLDER = "folder"
"""The key under which a run carries the folder it was read from; it names rows and defines nothing."""
TASK = ("protocol", "images", "weights", "model")
"""How the keys begin of what a method is given (`model_options` and the like too): rows of one task can be ranked."""


def facts(run: RunRecord) -> dict[str, Any]:
    """Everything that defines a run except its method and seed, by name; what is empty counts as absent.

    A key that only some records have is therefore a difference: a run that names the version of the library is not
    averaged with one that does not.
    """
    known = {key: value for key, value in run.identity.items() if key not in ("method", "settings")}
    settings = {f"settings.{key}": value for key, value in run.settings.items() if value is not None}
    return settings | {key: value for key, value in _flat(known).items() if not _empty(value)}


def common_facts(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """What all runs share beside settings, under plain names and without lists of digests."""
    first, *others = [facts(run) for run in runs]
    shared = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    plain = {key: value for key, value in shared.items() if not isinstance(value, list | tuple)}
    return {key.removeprefix("protocol."): value for key, value in plain.items() if not key.startswith("settings.")}


def experiment(run: RunRecord) -> str:
    """A key that is equal for two runs if nothing but their seeds differs."""
    defining = {key: value for key, value in facts(run).items() if key != FOLDER}
    return digest([run.method, defining, run.domains, run.borders, run.samples], length=64)


def task(run: RunRecord) -> str:
    """A key that is equal for two runs if their streams and source networks are."""
    given = {key: value for key, value in run.identity.items() if key.startswith(TASK) and not _empty(value)}
    return digest([given, run.domains, run.borders, run.samples], length=64)


def digest(value: Any, length: int = 6) -> str:
    """A short name for any value.

    >>> digest(["a", 1]) == digest(("a", 1)), len(digest("a"))
    (True, 6)
    """
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def from_folder(run: RunRecord, folder: str) -> RunRecord:
    """Mark a run with the folder it was read from."""
    return replace(run, identity={**run.identity, FOLDER: folder})


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Join the keys of nested mappings: {"protocol": {"order": "iid"}} becomes {"protocol.order": "iid"}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = _flat(value) if isinstance(value, Mapping) else None
        flat |= {key: value} if inner is None else {f"{key}.{name}": part for name, part in inner.items()}
    return flat


def _empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | tuple | dict) and not value)
