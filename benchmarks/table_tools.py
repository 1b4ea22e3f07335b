"""What the tables of the documents share: records, their cells, and Markdown."""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resitta.data.corruptions import CORRUPTIONS as PAPER_CORRUPTIONS
from resitta.data.corruptions import SHORT

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
TITLES = {
    "source": "Source",
    "bn": "BN",
    "pl": "PL",
    "tent": "TENT",
    "lame": "LAME",
    "cotta": "CoTTA",
    "note": "NOTE",
    "rotta": "RoTTA",
    "resitta": "ResiTTA",
}
FEW = ("source", "bn", "tent", "rotta", "resitta")
CORRUPTIONS = tuple(
    {"brightness": "bright", "gaussian": "gauss", "pixelate": "pixel"}.get(SHORT[name], SHORT[name])
    for name in PAPER_CORRUPTIONS
)
"""Heads of columns, short enough for fifteen of them."""

Cell = float | str | None
TABLES: dict[str, Callable[[], str]] = {}
VALUES: dict[str, Callable[[], float | str]] = {}
"""Single numbers in sentences; those that are no text yet get one digit behind the point."""


def table(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Give a function that renders a table the name that pages use."""

    def decorate(function: Callable[[], str]) -> Callable[[], str]:
        TABLES[name] = function
        return function

    return decorate


@dataclass(frozen=True)
class Run:
    """One record of a bench: a method, its settings, a seed, and the error of each corruption."""

    method: str
    seed: int
    settings: Mapping[str, Any]
    errors: tuple[float, ...]
    seconds: float
    samples: int

    @property
    def average(self) -> float:
        """The mean over the corruptions, the paper's Avg."""
        return statistics.mean(self.errors)


def runs(folder: str, method: str = "*", seed: int | str = "*", **settings: Any) -> list[Run]:
    """The records of a folder with these settings (None: left at its default), of domains that do not recur."""
    found = []
    for path in sorted((RECORDS / folder).glob(f"{method}-{seed}-*.json")):
        content = json.loads(path.read_text("utf-8"))
        run, recurs = content["run"], content.get("protocol", {}).get("course") == "recurring"
        if all(run["settings"].get(name) == value for name, value in settings.items()) and not recurs:
            errors = tuple(run["errors"])
            found.append(Run(run["method"], run["seed"], run["settings"], errors, run["seconds"], run["samples"]))
    return found


def one(folder: str, method: str, **settings: Any) -> Run:
    """The record of seed 1 with these settings; there must be exactly one."""
    found = runs(folder, method, 1, **settings)
    if len(found) != 1:
        sys.exit(f"{folder}: {len(found)} records of {method} with {settings}, one is needed")
    return found[0]


def record(name: str) -> dict[str, Any]:
    """A record that is one file."""
    content: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text("utf-8"))
    return content


def shown(cell: Cell, digits: int = 1) -> str:
    """A cell as text; None is empty."""
    return "" if cell is None else cell if isinstance(cell, str) else f"{cell:,.{digits}f}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[Cell]], *, digits: int = 1) -> str:
    """A Markdown table; columns of numbers are aligned to the right, except for the first, which names the row."""
    cells = [[shown(cell, digits) for cell in row] for row in rows]
    numbers = [all(text.strip("*")[:1] in NUMERIC for text in column) for column in zip(*cells, strict=True)]
    lines = [head, ["---", *("--:" if right else "---" for right in numbers[1:])], *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


NUMERIC = ("", "–", *"0123456789")
"""How a cell with a number begins, if it is not empty."""


def lowest_bold(cells: Sequence[Cell]) -> list[str]:
    """Errors with the lowest in bold type, as far as the digit shown."""
    texts = [shown(cell) for cell in cells]
    values = [float(text.split(" ")[0]) if text[:1].isdigit() else None for text in texts]
    best = min(value for value in values if value is not None)
    return [f"**{text}**" if value == best else text for text, value in zip(texts, values, strict=True)]


def spread(found: Sequence[Run]) -> str:
    """Mean ± standard deviation over the seeds; the source has no spread of its own."""
    averages = [run.average for run in found]
    if not averages:
        return "–"
    several = len(averages) > 1 and found[0].method != "source"
    return f"{statistics.mean(averages):.1f}" + (f" ± {statistics.stdev(averages):.1f}" if several else "")
