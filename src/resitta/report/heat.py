"""Tables of a page: errors on a ground that is the warmer the higher they are."""

from html import escape

from resitta.report.table import Row, Table


def heat_table(table: Table, colours: dict[str, str]) -> str:
    """The errors of every method and domain as HTML; the best of a column is bold, the second underlined."""
    highest = max((cell.mean for row in table.rows for cell in row.cells), default=0.0) or 1.0
    rows = [_errors(table, number, colours[row.label], highest) for number, row in enumerate(table.rows)]
    return _table(table, "Error in per cent per method and domain", rows)


def difference_table(table: Table) -> str:
    """Ours minus the paper's, for the methods that the paper has."""
    rows = [_differences(row) for row in table.rows if row.paper]
    return _table(table, "Difference to the paper in points", rows)


def _table(table: Table, caption: str, rows: list[str]) -> str:
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in table.columns)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="heat"><caption>{escape(caption)}</caption>'
        f'<thead><tr><th scope="col">Method</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _errors(table: Table, number: int, colour: str, highest: float) -> str:
    row = table.rows[number]
    cells = []
    for cell, mark in zip(row.cells, table.marks(number), strict=True):
        std = "" if cell.std is None else f"<small>±{cell.std:.1f}</small>"
        cells.append(f'<td class="{mark}" style="--heat:{cell.mean / highest:.2f}"><b>{cell.mean:.1f}</b>{std}</td>')
    name = f'<th scope="row"><i class="key" style="--c:{escape(colour)}"></i>{escape(row.label)}</th>'
    return f"<tr>{name}{''.join(cells)}</tr>"


def _differences(row: Row) -> str:
    cells = "".join(f'<td style="--heat:{min(1.0, abs(d) / 10):.2f}">{d:+.1f}</td>' for d in row.differences)
    return f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>'
