"""A table of errors: methods as rows, domains as columns, the mean and standard deviation over seeds in each cell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from resitta.bench.paper import PaperRow
from resitta.bench.record import RunRecord
from resitta.errors import BadData
from resitta.report import formats
from resitta.report.groups import Group, grouped, short
from resitta.streams.corruptions import CORRUPTIONS

Mark = Literal["best", "second", ""]
AVERAGE = "Avg"


@dataclass(frozen=True)
class Cell:
    """An error in per cent; `std` is the sample standard deviation over the seeds, None for a single one."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Row:
    """One method. The last cell is the average; `paper` holds the paper's numbers for the same cells, or nothing."""

    label: str
    method: str
    cells: tuple[Cell, ...]
    paper: tuple[float, ...] = ()

    @property
    def differences(self) -> tuple[float, ...]:
        """Ours minus the paper's, cell by cell, to the one decimal the paper prints (and never -0.0)."""
        return tuple(round(cell.mean - printed, 1) + 0.0 for cell, printed in zip(self.cells, self.paper, strict=False))


@dataclass(frozen=True)
class Table:
    """What every format prints; the last column is the average."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def marks(self, row: int) -> tuple[Mark, ...]:
        """Which cells of a row are the best or second best of their columns."""
        return tuple(ranks([r.cells[c].mean for r in self.rows])[row] for c in range(len(self.columns)))

    def to_text(self) -> str:
        """Aligned columns; `*` follows the best of a column."""
        return formats.as_text(self)

    def to_markdown(self) -> str:
        """A table for GitHub: the best in bold, the second best in italics."""
        return formats.as_markdown(self)

    def to_csv(self) -> str:
        """Full precision, for other programs."""
        return formats.as_csv(self)

    def to_latex(self) -> str:
        """The paper's layout: rotated names, the best in bold, the second best underlined."""
        return formats.as_latex(self)

    def to_rich(self) -> Any:
        """A table for the terminal, with one column per method."""
        return formats.as_rich(self)


def error_table(runs: Sequence[RunRecord], *, paper: Mapping[str, PaperRow] | None = None) -> Table:
    """Tabulate runs of several methods and seeds, optionally beside a main table of the paper.

    When domains come back, a column is a visit: the mean error over all domains on their first visit, their second, ...
    """
    groups = grouped(runs)
    domains = runs[0].domains
    if paper is not None and domains != CORRUPTIONS:
        raise BadData(f"the paper has the fifteen corruptions in its order, the runs have {', '.join(domains)}")
    columns = columns_of(domains)
    rows = tuple(_row(group, columns, paper or {}) for group in groups)
    return Table((*columns, AVERAGE), rows)


def columns_of(domains: Sequence[str]) -> dict[str, list[int]]:
    """Each column's name and the positions of the domains it averages.

    >>> columns_of(["snow", "fog", "jpeg_compression"])
    {'snow': [0], 'fog': [1], 'jpeg': [2]}
    >>> columns_of(["snow", "fog", "snow", "fog"])
    {'visit 1': [0, 1], 'visit 2': [2, 3]}
    """
    if len(set(domains)) == len(domains):
        return {short(domain): [place] for place, domain in enumerate(domains)}
    columns: dict[str, list[int]] = {}
    for place, domain in enumerate(domains):
        columns.setdefault(f"visit {1 + list(domains[:place]).count(domain)}", []).append(place)
    return columns


def ranks(values: Sequence[float]) -> tuple[Mark, ...]:
    """Mark the lowest and second lowest of a column, as printed with one decimal.

    Equal values share a mark; after a shared first place there is no second. A single row needs no marks.

    >>> ranks([30.0, 10.0, 20.0]), ranks([10.01, 10.04, 20.0])
    (('', 'best', 'second'), ('best', 'best', ''))
    """
    printed = [round(value, 1) for value in values]
    places = [sum(other < value for other in printed) for value in printed]
    marks: dict[int, Mark] = {0: "best", 1: "second"}
    alone = len(values) < 2
    return tuple(
        "" if alone or math.isnan(value) else marks.get(place, "") for value, place in zip(printed, places, strict=True)
    )


def _row(group: Group, columns: Mapping[str, Sequence[int]], paper: Mapping[str, PaperRow]) -> Row:
    errors = np.array([run.errors for run in group.runs])
    cells = [_cell(errors[:, list(places)].mean(axis=1)) for places in columns.values()]
    printed = paper.get(group.method)
    numbers = (*printed.errors, printed.average) if printed else ()
    return Row(group.label, group.method, (*cells, _cell(errors.mean(axis=1))), numbers)


def _cell(over_seeds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Cell:
    std = float(over_seeds.std(ddof=1)) if len(over_seeds) > 1 else None
    return Cell(float(over_seeds.mean()), std)
