"""What a table of errors holds, and which of its cells are the best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    alone = len(values) < 2
    return tuple(
        "" if alone or math.isnan(value) else marks.get(place, "") for value, place in zip(printed, places, strict=True)
    )
