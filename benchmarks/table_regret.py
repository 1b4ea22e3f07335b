"""How far each method is from the best one of every stream, and what happens when domains return."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

from recommendations import Run, changed, rank, read
from table_matrix import EMPTY, ORDERED, everything, named
from table_robustness import visits
from table_tools import Cell as Value
from table_tools import markdown, table

from resitta.method import get_method
from resitta.methods.recommend import Cell, Measurements
from resitta.names import OrderName

ORDERS = get_args(OrderName)
ENOUGH = 0.75
"""A stream counts if this share of the methods was measured on it."""
LEAST_VISITS = 4
"""A first, a second, a last and one between."""
Stream = tuple[str, str]
"""A testbed and an order."""
Errors = dict[Stream, dict[str, float]]


@table("regret-bn")
def with_batch_norm() -> str:
    """Networks with BatchNorm."""
    return regret_table(everything(), batch_norm=True)


@table("regret-other")
def without_batch_norm() -> str:
    """Networks with other normalisation."""
    return regret_table(everything(), batch_norm=False)


def regret_table(found: Measurements, *, batch_norm: bool) -> str:
    """Rows methods, columns testbeds. Methods that use the order of labels come last, compared with each other."""
    beds = {bed.name: bed.title for bed in found.beds if (bed.normalisation == "BatchNorm") == batch_norm}
    cells = [cell for cell in found.cells if cell.bed in beds]
    ordered = {cell.label for cell in cells if cell.uses_label_order}
    errors = counted(main_setups(cells))
    columns = [bed for bed in beds if any(bed == name for name, _ in errors)]
    rows = block(errors, columns, {cell.label for cell in cells} - ordered)
    rows += [[ORDERED, *[""] * (len(columns) + 1)]] if (with_order := block(errors, columns, ordered)) else []
    head = ["above the best (points)", *(beds[bed] for bed in columns), "worst regret"]
    return markdown(head, rows + with_order) if rows else EMPTY


def block(errors: Errors, columns: Sequence[str], labels: set[str]) -> list[list[Value]]:
    """The methods of one kind that were measured on every stream, the lowest worst regret first."""
    among = {at: {label: row[label] for label in labels & row.keys()} for at, row in errors.items()}
    everywhere = set.intersection(*map(set, among.values())) if among else set()
    regrets = {label: {at: row[label] - min(row.values()) for at, row in among.items()} for label in everywhere}
    worst = {label: max(regrets[label].values()) for label in everywhere}
    return [
        [named(label), *(shown(regrets[label], bed) for bed in columns), f"{worst[label]:.1f}"]
        for label in sorted(everywhere, key=lambda label: (worst[label], label))
    ]


def main_setups(cells: Iterable[Cell]) -> Errors:
    """The errors of each stream by method: of domains that come once, in the setup with the most methods."""
    setups: dict[Stream, dict[tuple[str, int, int, int], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for cell in cells:
        if cell.course == "once":
            setups[cell.bed, cell.order][cell.setup][cell.label] = cell.error
    return {at: max(found.items(), key=lambda pair: (len(pair[1]), pair[0]))[1] for at, found in setups.items()}


def counted(errors: Errors) -> Errors:
    """The streams on which enough of the methods were measured.

    >>> counted({("a", "iid"): {"x": 1.0, "y": 2.0}, ("b", "iid"): {"x": 1.0}})
    {('a', 'iid'): {'x': 1.0, 'y': 2.0}}
    """
    most = max(map(len, errors.values()), default=0)
    return {at: row for at, row in errors.items() if len(row) >= ENOUGH * most}


def shown(regrets: dict[Stream, float], bed: str) -> str:
    """The regrets on a testbed in all orders.

    >>> shown({("a", "ptta"): 0.0, ("a", "iid"): 1.25}, "a")
    '0.0 · – · – · 1.2 · –'
    """
    return " · ".join(f"{regrets[bed, order]:.1f}" if (bed, order) in regrets else "–" for order in ORDERS)


@table("recurring")
def recurring() -> str:
    """Errors of each visit where the same domains return."""
    runs = [run for run in read() if run.protocol["course"] == "recurring" and run.protocol["visits"] >= LEAST_VISITS]
    return recurring_table(runs, {bed.name: bed.title for bed in everything().beds})


def recurring_table(runs: Sequence[Run], titles: dict[str, str]) -> str:
    """Runs of one testbed and length together, the lowest error first."""
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.record.identity["bed"], run.record.samples].append(run)
    rows: list[list[Value]] = []
    for (bed, _), group in sorted(groups.items(), key=lambda pair: (rank(pair[0][0]), pair[0][1])):
        each = group[0].record.samples // group[0].protocol["visits"] // len(set(group[0].record.domains))
        rows.append([f"*{titles[bed]}, {each:,} images of each corruption*", *[""] * 6])
        rows += [row(run) for run in sorted(group, key=lambda run: run.record.average)]
    head = ["error (%)", "first visit", "second", "mean between", "last", "visits", "mean of all"]
    return markdown(head, rows) if rows else EMPTY


def row(run: Run) -> list[Value]:
    """A method, its errors by visit, and their mean."""
    each, many = len(set(run.record.domains)), run.protocol["visits"]
    errors = run.record.errors
    of_visits = [sum(errors[each * visit : each * (visit + 1)]) / each for visit in range(many)]
    label = " ".join([run.record.method, *(f"{key}={value}" for key, value in changed(run.record).items())])
    usual = get_method(run.record.method)
    mark = " (prior correction)" if getattr(usual, "prior_correction", "none") != "none" else ""
    return [f"{named(label)}{mark}", *visits(of_visits), f"{run.record.average:.1f}"]
