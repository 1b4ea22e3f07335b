"""The table of errors of some runs: the mean and standard deviation over seeds, per experiment and domain."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from resitta.bench.paper import PaperRow
from resitta.bench.record import RunRecord
from resitta.report.against import notes, printed_row
from resitta.report.groups import Group, grouped, short
from resitta.report.table import Cell, Row, Table


def error_table(runs: Sequence[RunRecord], *, paper: Mapping[str, PaperRow] | None = None) -> Table:
    """Tabulate runs of several methods and seeds, optionally beside a main table of the paper.

    Only runs that differ in nothing but their seed are averaged; see `grouped`. The paper's numbers stand beside rows
    with the paper's protocol, network and settings; notes say why other rows have none. When domains come back, a
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
