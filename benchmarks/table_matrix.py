"""Heat tables of all methods on all testbeds, one for each order of streams; see `recommendations.py`."""

from collections.abc import Sequence
from functools import cache

from recommendations import measured
from table_tools import table

from resitta.method import list_methods
from resitta.methods.recommend import Cell, Measurements
from resitta.names import METHODS

EMPTY = "*Not measured yet.*"
ORDERED = "*with the order of labels*"
Column = tuple[str, str, int, int, int]
"""Testbed, course, severity, size of batches, images."""


@cache
def everything() -> Measurements:
    """All measurements, read once."""
    return measured()


@table("which-ptta")
def temporally_correlated() -> str:
    """Streams whose neighbours share classes."""
    return heat_table(everything(), "ptta")


@table("which-slots")
def correlated_and_shuffled() -> str:
    """Streams whose time slots hold few classes, shuffled inside each."""
    return heat_table(everything(), "slots")


@table("which-iid")
def shuffled() -> str:
    """Shuffled streams, one domain after the other."""
    return heat_table(everything(), "iid")


@table("which-sorted")
def sorted_by_label() -> str:
    """Streams sorted by label."""
    return heat_table(everything(), "sorted")


@table("which-mixed")
def mixed() -> str:
    """Shuffled streams of all domains at once."""
    return heat_table(everything(), "mixed")


def heat_table(found: Measurements, order: str) -> str:
    """Rows methods, columns testbeds; methods that use the order of labels come last and have winners of their own."""
    cells = [cell for cell in found.cells if cell.order == order and cell.course != "recurring"]
    if not cells:
        return EMPTY
    columns = list(dict.fromkeys(column_of(cell) for cell in cells))
    titles = {bed.name: bed.title for bed in found.beds}
    head = ["error (%)", *(heading(column, titles[column[0]]) for column in columns), "cost"]
    rows = [row for uses in (False, True) for row in block(cells, columns, uses)]
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", seeds(cells)])


def column_of(cell: Cell) -> Column:
    """The column of a cell."""
    return cell.bed, *cell.setup


def heading(column: Column, title: str) -> str:
    """The testbed, the images, and what is unusual about the stream."""
    _, course, severity, batch_size, images = column
    unusual = [f"batches of {batch_size}"] * (batch_size != 64) + [f"{course} domains"] * (course != "once")
    unusual += [f"severity {severity}"] * (severity != 5)
    return "<br>".join([title, f"{images:,} images", *unusual])


def block(cells: Sequence[Cell], columns: Sequence[Column], uses_label_order: bool) -> list[list[str]]:
    """The rows of one kind of methods."""
    mine = [cell for cell in cells if cell.uses_label_order == uses_label_order]
    labels = sorted({cell.label: cell.method for cell in mine}.items(), key=lambda pair: (place(pair[1]), pair[0]))
    title = [[ORDERED, *[""] * (len(columns) + 1)]] if uses_label_order and labels else []
    return title + [row(label, mine, cells, columns) for label, _ in labels]


def place(method: str) -> int:
    """The paper's order of methods; further ones follow."""
    names = [*METHODS, *(name for name in list_methods() if name not in METHODS)]
    return names.index(method) if method in names else len(names)


def row(label: str, rivals: Sequence[Cell], cells: Sequence[Cell], columns: Sequence[Column]) -> list[str]:
    """One method: its errors, coloured between the source's and the best, and its cost."""
    own = {column_of(cell): cell for cell in rivals if cell.label == label}
    shown = []
    for column in columns:
        here = [cell for cell in cells if column_of(cell) == column]
        best = min((cell.error for cell in rivals if column_of(cell) == column), default=None)
        shown.append(heat(own[column], best, here) if column in own else "–")
    return [named(label), *shown, shown_cost(next(iter(own.values())).cost)]


def named(label: str) -> str:
    """A method and, in a second span, its changed settings.

    >>> named("tent"), named("tent lr=0.1 loss=come")
    ('`tent`', '`tent`, `lr=0.1 loss=come`')
    """
    method, _, settings = label.partition(" ")
    return f"`{method}`" + (f", `{settings}`" if settings else "")


def heat(cell: Cell, best: float | None, here: Sequence[Cell]) -> str:
    """An error on a coloured ground: the better than the source, the stronger; worse ones are grey.

    >>> source = Cell(bed="b", order="iid", course="once", severity=5, batch_size=64, images=9, domains=1,
    ...     method="source", seeds=[1], error=50.0)
    >>> heat(source, 40.0, [source])
    '<span class="heat">50.0</span>'
    """
    source = next((other.error for other in here if other.label == "source"), None)
    lowest = min(other.error for other in here)
    text = f"{cell.error:.1f}" + ("" if cell.spread is None else f" ± {cell.spread:.1f}")
    text = f"<b>{text}</b>" if cell.error == best else text
    if source is None or cell.error == source:
        return f'<span class="heat">{text}</span>'
    if cell.error > source:
        return (
            f'<span class="heat" style="--worse: {min(1.0, (cell.error - source) / (100 - source)):.2f}">{text}</span>'
        )
    return f'<span class="heat" style="--better: {(source - cell.error) / (source - lowest):.2f}">{text}</span>'


def shown_cost(cost: float | None) -> str:
    """The cost as a multiple of plain inference.

    >>> shown_cost(1.04), shown_cost(None)
    ('1.0×', '–')
    """
    return "–" if cost is None else f"{cost:.1f}×"


def seeds(cells: Sequence[Cell]) -> str:
    """How many seeds the numbers are means of."""
    counts = {len(cell.seeds) for cell in cells}
    if counts == {1}:
        return "One seed."
    some = "where there is a ±" if 1 in counts else "each"
    return f"Mean and standard deviation of {max(counts)} seeds {some}." + (
        " One seed elsewhere." if 1 in counts else ""
    )
