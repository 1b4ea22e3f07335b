"""The names of rows: the method, and whatever tells a row from the others."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from resitta.bench.record import RunRecord
from resitta.errors import UnknownName
from resitta.method import get_method
from resitta.report.identity import FOLDER, digest, experiment, facts

OPAQUE = (FOLDER, "code", "method_source", "model_code", "model_source", "weights", "images")
"""Facts that say little to a reader, in the order in which they are tried where nothing else tells rows apart."""

Fact = tuple[str, Any]


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


def _needed(
    keys: Sequence[str], plain: Sequence[str], rows: Sequence[RunRecord], known: Sequence[dict[str, Any]]
) -> list[str]:
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


def _differ(rows: Sequence[RunRecord], known: Sequence[dict[str, Any]], a: int, b: int) -> Callable[[str], bool]:
    """Whether two rows differ in a fact; what belongs to a method cannot differ between methods."""
    same_method = rows[a].method == rows[b].method
    return lambda key: (same_method or not _of_method(key)) and known[a].get(key) != known[b].get(key)


def _label(place: int, rows: Sequence[RunRecord], known: Sequence[dict[str, Any]], named: Sequence[str]) -> str:
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


def _unusual(key: str, fact: dict[str, Any], pool: Sequence[dict[str, Any]]) -> bool:
    """Whether a row has a fact that not even the majority shares, or that another row lacks altogether."""
    if key not in fact or len(pool) == 1:
        return False
    same = sum(other.get(key) == fact[key] for other in pool)
    return 2 * same <= len(pool) or any(key not in other for other in pool)


def _of_method(key: str) -> bool:
    return key.startswith(("settings.", "method", "code"))


def _listed(key: str, known: Sequence[dict[str, Any]]) -> bool:
    return any(isinstance(fact.get(key), list | tuple) for fact in known)


def _text(fact: Fact) -> str:
    """A fact in words.

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
    return f"{words.get(name, name)} {digest(value) if isinstance(value, list | tuple) else str(value)[:60]}"
