"""A table as plain text, Markdown, CSV, LaTeX, or in colour on the terminal."""

import csv
import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from resitta.errors import require

if TYPE_CHECKING:  # a table offers these formats as its methods
    from resitta.report.tables import Table

Style = Callable[[str, str], str]


def as_text(table: "Table") -> str:
    """Aligned columns; `*` follows the best of a column.

    >>> from resitta.report.tables import Cell, Row, Table
    >>> rows = Row("BN", "bn", (Cell(30.04),)), Row("TENT", "tent", (Cell(28.0, 0.51),))
    >>> print(as_text(Table(("Avg",), rows)))
    Method          Avg
    BN             30.0
    TENT    28.0 ± 0.5*
    """
    starred: Style = lambda text, mark: text + ("*" if mark == "best" else "")  # noqa: E731
    lines = [["Method", *table.columns], *_lines(table, starred)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def as_markdown(table: "Table") -> str:
    """A table for GitHub: the best in bold, the second best in italics."""
    wrap = {"best": "**{}**", "second": "*{}*", "": "{}"}
    rule = ["---", *("--:" for _ in table.columns)]
    lines = [["Method", *table.columns], rule, *_lines(table, lambda text, mark: wrap[mark].format(text))]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def as_csv(table: "Table") -> str:
    """Full precision for other programs: per method a line of means and, where known, of deviations and the paper's."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "value", *table.columns])
    for row in table.rows:
        writer.writerow([row.label, "mean", *(cell.mean for cell in row.cells)])
        if row.cells[0].std is not None:
            writer.writerow([row.label, "std", *(cell.std for cell in row.cells)])
        if row.paper:
            writer.writerow([row.label, "paper", *row.paper])
    return out.getvalue()


def as_latex(table: "Table") -> str:
    r"""The paper's layout: rotated names, the best in bold, the second best underlined.

    Needs the packages booktabs and graphicx; `\resizebox{\textwidth}{!}{...}` around it fits it to the page.
    """
    wrap = {"best": "\\textbf{{{}}}", "second": "\\underline{{{}}}", "": "{}"}
    bare: Style = lambda text, mark: wrap[mark].format(text.replace(" ± ", "$\\pm$"))  # noqa: E731
    names = [f"\\rotatebox[origin=c]{{45}}{{{latex_escape(name)}}}" for name in table.columns[:-1]]
    time = f"Time & \\multicolumn{{{len(names)}}}{{l|}}{{$t\\longrightarrow$}} &"
    head = ["Method", *names, table.columns[-1] + "."]
    body = [[latex_escape(label), *cells] for label, *cells in _lines(table, bare)]
    return "\n".join(
        [
            f"\\begin{{tabular}}{{l|{'c' * len(names)}|c}}",
            "  \\toprule",
            f"  {time} \\\\",
            "  \\midrule",
            f"  {' & '.join(head)} \\\\",
            "  \\midrule",
            *(f"  {' & '.join(line)} \\\\" for line in body),
            "  \\bottomrule",
            "\\end{tabular}",
        ]
    )


def as_rich(table: "Table") -> Any:
    """A `rich` table with one column per method, so that nine methods fit a terminal of 80 characters."""
    rich_table, rich_text = require("rich.table", "cli"), require("rich.text", "cli")
    styles = {"best": "bold green", "second": "underline", "": ""}
    out = rich_table.Table(box=require("rich.box", "cli").SIMPLE_HEAD, pad_edge=False)
    out.add_column("error %")
    for row in table.rows:
        out.add_column(rich_text.Text(row.label), justify="right")
    marks = [table.marks(number) for number in range(len(table.rows))]
    for place, name in enumerate(table.columns):
        texts = [f"{row.cells[place].mean:.1f}" for row in table.rows]
        shown = [rich_text.Text(text, styles[mark[place]]) for text, mark in zip(texts, marks, strict=True)]
        out.add_row(rich_text.Text(name), *shown, end_section=place == len(table.columns) - 2)
    deviations = [row.cells[-1].std for row in table.rows]
    if any(std is not None for std in deviations):
        out.add_row("± seeds", *("" if std is None else f"{std:.1f}" for std in deviations), style="dim")
    return out


def latex_escape(text: str) -> str:
    r"""Make any text safe in LaTeX.

    >>> print(latex_escape("50 % of a_b & c\\d"))
    50 \% of a\_b \& c\textbackslash{}d
    """
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def _lines(table: "Table", style: Style) -> Iterator[list[str]]:
    """Each method's line and, where the paper has the method, the paper's line and the difference."""
    for number, row in enumerate(table.rows):
        marks = table.marks(number)
        yield [row.label, *(style(str(cell), mark) for cell, mark in zip(row.cells, marks, strict=True))]
        if row.paper:
            yield [f"{row.label}, paper", *(f"{value:.1f}" for value in row.paper)]
            yield ["difference", *(f"{value:+.1f}" for value in row.differences)]
