"""What defines a run beside its seed, and the row names that follow from it.

Runs are averaged only where everything that defines them is equal; rows are named by their method and what differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from resitta.bench.record import RunRecord
from resitta.bench.runner import identity_digest
from resitta.errors import UnknownName
from resitta.method import get_method

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
    return identity_digest([run.method, defining, run.domains, run.borders, run.samples], length=64)


def task(run: RunRecord) -> str:
    """A key that is equal for two runs if their streams and source networks are."""
    given = {key: value for key, value in run.identity.items() if key.startswith(TASK) and not _empty(value)}
    return identity_digest([given, run.domains, run.borders, run.samples], length=64)


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


OPAQUE = (FOLDER, "code", "method_source", "model_code", "model_source", "weights", "images")
"""Facts that mean little to a reader; named, in this order, only where nothing else distinguishes rows."""

Fact = tuple[str, Any]
Facts = dict[str, Any]


def labels(rows: Sequence[RunRecord]) -> list[str]:
    """Name runs of different experiments by their method and by what differs between them.

    Settings and code are compared among the runs of a method, everything else (severity, model, data, ...) among all.
    What most rows have is not named, unless some lack it. Digests and folders are named only where two rows would
    otherwise look alike or comparable without being so.
    """
    known = [facts(run) for run in rows]
    keys = dict.fromkeys(key for fact in known for key in fact)
    plain = [key for key in keys if key not in OPAQUE and not _listed(key, known)]
    named = [*plain, *_needed([key for key in (*OPAQUE, *keys) if key not in plain], plain, rows, known)]
    names = [_label(place, rows, known, named) for place in range(len(rows))]
    return [name if names.count(name) == 1 else f"{name} #{names[:i].count(name) + 1}" for i, name in enumerate(names)]


def title_of(run: RunRecord) -> str:
    """The display name of a run's method: as recorded, as its class has it, or the registered name."""
    try:
        registered = vars(get_method(run.method)).get("title", "")
    except UnknownName:
        registered = ""
    return run.title or registered or run.method


def _needed(keys: list[str], plain: list[str], rows: Sequence[RunRecord], known: Sequence[Facts]) -> list[str]:
    """Which of the opaque facts must be named, so that rows that look comparable are."""
    needed: list[str] = []
    for key in dict.fromkeys(keys):
        named, unnamed = {*plain, *needed}, [other for other in keys if other not in needed]
        for a, b in combinations(range(len(rows)), 2):
            differ = _differ(rows, known, a, b)
            alike = not any(differ(other) for other in named)
            hidden = any(differ(other) for other in unnamed if other != FOLDER)
            if alike and (hidden or experiment(rows[a]) == experiment(rows[b])) and differ(key):
                needed.append(key)
                break
    return needed


def _differ(rows: Sequence[RunRecord], known: Sequence[Facts], a: int, b: int) -> Callable[[str], bool]:
    """Whether two rows differ in a fact; what belongs to a method cannot differ between methods."""
    same_method = rows[a].method == rows[b].method
    return lambda key: (same_method or not _of_method(key)) and known[a].get(key) != known[b].get(key)


def _label(place: int, rows: Sequence[RunRecord], known: Sequence[Facts], named: Sequence[str]) -> str:
    run, mine = rows[place], known[place]
    same_method = [fact for other, fact in zip(rows, known, strict=True) if other.method == run.method]
    unusual = [(key, mine[key]) for key in named if _unusual(key, mine, same_method if _of_method(key) else known)]
    settings = [_text(fact) for fact in unusual if fact[0].startswith("settings.")]
    others = [_text(fact) for fact in unusual if not fact[0].startswith("settings.")]
    return " ".join([_title(run, rows), *settings, *([f"({', '.join(others)})"] if others else [])])


def _title(run: RunRecord, rows: Sequence[RunRecord]) -> str:
    title = title_of(run)
    shared = any(title_of(other) == title and other.method != run.method for other in rows)
    return f"{title} {run.method}" if shared else title


def _unusual(key: str, fact: Facts, pool: Sequence[Facts]) -> bool:
    """Whether a row has a fact that not even the majority shares, or that another row lacks altogether."""
    if key not in fact or len(pool) == 1:
        return False
    same = sum(other.get(key) == fact[key] for other in pool)
    return 2 * same <= len(pool) or any(key not in other for other in pool)


def _of_method(key: str) -> bool:
    return key.startswith(("settings.", "method", "code"))


def _listed(key: str, known: Sequence[Facts]) -> bool:
    return any(isinstance(fact.get(key), list | tuple) for fact in known)


def _text(fact: Fact) -> str:
    """A fact as text.

    >>> [_text(f) for f in (("settings.eta", 0.05), ("protocol.severity", 3), ("untrained", True), ("folder", "runs"))]
    ['eta=0.05', 'severity 3', 'untrained', 'runs']
    """
    key, value = fact
    name = key.removeprefix("protocol.")
    if key.startswith(("settings.", "model_options.")):
        return f"{key.partition('.')[2]}={value}"
    if key == FOLDER or value is True:
        return str(value) if key == FOLDER else name
    words = {"method_source": "code", "model_source": "model code", "model_code": "model code"}
    said = identity_digest(value, 6) if isinstance(value, list | tuple) else str(value)[:60]
    return f"{words.get(name, name)} {said}"
