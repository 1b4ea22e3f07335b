"""Tables of errors: mean and standard deviation over seeds per experiment and domain, and the best of each column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from resitta.bench.paper import PaperRow
from resitta.bench.record import RunRecord
from resitta.report.groups import Group, grouped, short
from resitta.report.paper_comparison import notes, printed_row

Mark = Literal["best", "second", ""]


@dataclass(frozen=True)
class Cell:
    """An error in per cent; `std` is the sample standard deviation over the seeds, None for a single one."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Row:
    """One experiment. The last cell is the average; `paper` holds the paper's numbers for the same cells, or nothing.

    `seeds`: how many runs the cells are means of. Rows are ranked among those with the same `task`.
    """

    label: str
    method: str
    cells: tuple[Cell, ...]
    paper: tuple[float, ...] = ()
    seeds: int = 1
    task: str = ""

    @property
    def differences(self) -> tuple[float, ...]:
        """Ours minus the paper's, cell by cell, to the one decimal the paper prints (and never -0.0)."""
        return tuple(round(cell.mean - printed, 1) + 0.0 for cell, printed in zip(self.cells, self.paper, strict=False))


@dataclass(frozen=True)
class Table:
    """Experiments as rows, domains as columns; the last column is the average.

    `ordered`: whether the domains follow each other in time as the columns do. `notes` are sentences about the rows.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    ordered: bool = True
    notes: tuple[str, ...] = ()

    def marks(self, row: int) -> tuple[Mark, ...]:
        """Which cells of a row are the best or second best of their columns, among the rows with the same task."""
        peers = [r for r in self.rows if r.task == self.rows[row].task]
        place = [r is self.rows[row] for r in peers].index(True)
        return tuple(ranks([r.cells[c].mean for r in peers])[place] for c in range(len(self.columns)))

    @property
    def legend(self) -> str:
        """What ± stands for, and how many seeds each row has if they differ; empty if every row has one seed."""
        counts = sorted({row.seeds for row in self.rows}, reverse=True)
        if counts == [1]:
            return ""
        if len(counts) == 1:
            return f"± standard deviation over {counts[0]} seeds"
        named = [", ".join(row.label for row in self.rows if row.seeds == count) for count in counts[:-1]]
        listed = [f"{count}: {names}" for count, names in zip(counts, [*named, "the others"], strict=True)]
        return f"± standard deviation over the seeds of a row ({'; '.join(listed)})"


def ranks(values: Sequence[float]) -> tuple[Mark, ...]:
    """Mark the lowest and second lowest of a column, as printed with one decimal.

    Equal values share a mark; after a shared first place there is no second. A single row needs no marks.

    >>> ranks([30.0, 10.0, 20.0]), ranks([10.01, 10.04, 20.0])
    (('', 'best', 'second'), ('best', 'best', ''))
    """
    printed = [round(value, 1) for value in values]
    places = [sum(other < value for other in printed) for value in printed]
    marks: dict[int, Mark] = {0: "best", 1: "second"}
    ranked = [len(values) > 1 and not math.isnan(value) for value in values]
    return tuple(marks.get(place, "") if known else "" for place, known in zip(places, ranked, strict=True))


def error_table(runs: Sequence[RunRecord], *, paper: Mapping[str, PaperRow] | None = None) -> Table:
    """Tabulate runs of several methods and seeds, optionally beside a main table of the paper.

    Only runs that differ in nothing but their seed are averaged; see `grouped`. The paper's numbers stand beside rows
    with the paper's protocol, network and settings; notes say why other rows have none. When domains recur, a
    column is a visit: the mean error over all domains on their first visit, their second, ...
    """
    return table_of(grouped(runs), paper=paper)


def table_of(groups: Sequence[Group], *, paper: Mapping[str, PaperRow] | None = None) -> Table:
    """Tabulate groups of runs; see `error_table`."""
    run = groups[0].runs[0]
    columns = columns_of(run.domains)
    rows = tuple(_row(group, columns, paper or {}) for group in groups)
    return Table((*columns, "Avg"), rows, ordered=bool(run.borders), notes=notes(groups, paper or {}))


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


def _row(group: Group, columns: Mapping[str, list[int]], paper: Mapping[str, PaperRow]) -> Row:
    errors = np.array([run.errors for run in group.runs])
    cells = [_cell(errors[:, places].mean(axis=1)) for places in columns.values()]
    printed = printed_row(group, paper)
    numbers = (*printed.errors, printed.average) if printed else ()
    all_cells = (*cells, _cell(errors.mean(axis=1)))
    return Row(group.label, group.method, all_cells, numbers, seeds=len(group.runs), task=group.task)


def _cell(over_seeds: NDArray[np.float64]) -> Cell:
    std = float(over_seeds.std(ddof=1)) if len(over_seeds) > 1 else None
    return Cell(float(over_seeds.mean()), std)
