"""The table of errors of some runs: the mean and standard deviation over seeds, per method and domain."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from resitta.bench.paper import PaperRow
from resitta.bench.record import RunRecord
from resitta.errors import BadData
from resitta.report.groups import Group, grouped, short
from resitta.report.table import Cell, Row, Table
from resitta.streams.corruptions import CORRUPTIONS


def error_table(runs: Sequence[RunRecord], *, paper: Mapping[str, PaperRow] | None = None) -> Table:
    """Tabulate runs of several methods and seeds, optionally beside a main table of the paper.

    When domains come back, a column is a visit: the mean error over all domains on their first visit, their second, ...
    """
    groups = grouped(runs)
    domains = runs[0].domains
    if paper is not None and domains != CORRUPTIONS:
        raise BadData(f"the paper has the fifteen corruptions in its order, the runs have {', '.join(domains)}")
    columns = columns_of(domains)
    return Table((*columns, "Avg"), tuple(_row(group, columns, paper or {}) for group in groups))


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
    printed = paper.get(group.method)
    numbers = (*printed.errors, printed.average) if printed else ()
    return Row(group.label, group.method, (*cells, _cell(errors.mean(axis=1))), numbers)


def _cell(over_seeds: NDArray[np.float64]) -> Cell:
    std = float(over_seeds.std(ddof=1)) if len(over_seeds) > 1 else None
    return Cell(float(over_seeds.mean()), std)
