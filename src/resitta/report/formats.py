"""A table as plain text, Markdown, CSV, LaTeX, or in colour on the terminal.

Where a row has the paper's numbers, they and the difference follow it as rows of their own.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resitta.errors import require
from resitta.report.experiments import Comparison
from resitta.report.table import Mark, Table


def as_text(table: Table) -> str:
    """Align the columns; `*` follows the best of each.

    >>> from resitta.report.table import Cell, Row
    >>> rows = Row("BN", "bn", (Cell(30.04),)), Row("TENT", "tent", (Cell(28.0, 0.51),))
    >>> print(as_text(Table(("Avg",), rows)))
    Method          Avg
    BN             30.0
    TENT    28.0 ± 0.5*
    """
    lines = [["Method", *table.columns], *_lines(table, {"best": "{}*", "second": "{}", "": "{}"})]
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([label.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))])
        for label, *cells in lines
    )


def as_markdown(table: Table) -> str:
    """For GitHub: the best in bold, the second best in italics."""
    lines = _lines(table, {"best": "**{}**", "second": "*{}*", "": "{}"})
    rule = ["---", *("--:" for _ in table.columns)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in (["Method", *table.columns], rule, *lines)
    )


def as_csv(table: Table) -> str:
    """Full precision for other programs: lines of means and, where known, of deviations and the paper's numbers."""
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


def as_latex(table: Table) -> str:
    r"""The paper's layout: rotated names, the best in bold, the second best underlined.

    Needs the packages booktabs and graphicx; `\resizebox{\textwidth}{!}{...}` around it fits it to the page.
    """
    *domains, average = table.columns
    names = [f"\\rotatebox[origin=c]{{45}}{{{latex_escape(name)}}}" for name in domains]
    lines = _lines(table, {"best": "\\textbf{{{}}}", "second": "\\underline{{{}}}", "": "{}"})
    body = [[latex_escape(label), *(cell.replace(" ± ", "$\\pm$") for cell in cells)] for label, *cells in lines]
    return "\n".join(
        [
            f"\\begin{{tabular}}{{l|{'c' * len(names)}|c}}",
            "  \\toprule",
            f"  Time & \\multicolumn{{{len(names)}}}{{l|}}{{$t\\longrightarrow$}} & \\\\",
            "  \\midrule",
            f"  {' & '.join(['Method', *names, average])} \\\\",
            "  \\midrule",
            *(f"  {' & '.join(line)} \\\\" for line in body),
            "  \\bottomrule",
            "\\end{tabular}",
        ]
    )


def as_rich(table: Table) -> Any:
    """For the terminal, with one column per method, so that nine methods fit into 80 characters."""
    text, styles = require("rich.text", "cli").Text, {"best": "bold green", "second": "underline", "": ""}
    out = require("rich.table", "cli").Table(box=require("rich.box", "cli").SIMPLE_HEAD, pad_edge=False)
    out.add_column("error %")
    for row in table.rows:
        out.add_column(text(row.label), justify="right")
    marks = [table.marks(number) for number in range(len(table.rows))]
    for place, name in enumerate(table.columns):
        means = [f"{row.cells[place].mean:.1f}" for row in table.rows]
        shown = [text(mean, styles[mark[place]]) for mean, mark in zip(means, marks, strict=True)]
        out.add_row(text(name), *shown, end_section=place == len(table.columns) - 2)
    deviations = [row.cells[-1].std for row in table.rows]
    if any(std is not None for std in deviations):
        out.add_row("± seeds", *("" if std is None else f"{std:.1f}" for std in deviations), style="dim")
    return out


def _lines(table: Table, wrap: Mapping[Mark, str]) -> Iterator[list[str]]:
    for number, row in enumerate(table.rows):
        cells = zip(row.cells, table.marks(number), strict=True)
        yield [row.label, *(wrap[mark].format(cell) for cell, mark in cells)]
        if row.paper:
            yield [f"{row.label}, paper", *(f"{value:.1f}" for value in row.paper)]
            yield ["difference", *(f"{value:+.1f}" for value in row.differences)]


def latex_escape(text: str) -> str:
    r"""Make any text safe in LaTeX.

    >>> print(latex_escape("50 % of a_b & c\\d"))
    50 \% of a\_b \& c\textbackslash{}d
    """
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def comparison_text(found: Comparison) -> str:
    """Our average errors over the values of something above the paper's, in columns.

    >>> errors = {"ours": (22.0, None), "theirs": (22.5, 23.0)}
    >>> found = Comparison(title="η", name="eta", values=("0", "1"), dataset="cifar10", **errors)
    >>> print(comparison_text(found))
    <BLANKLINE>
    eta       0     1
    ours   22.0     -
    paper  22.5  23.0
    """
    rows = [(found.name, *found.values), ("ours", *_errors(found.ours)), ("paper", *_errors(found.theirs))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    lines = [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]
    return "\n".join(["", *lines])


def _errors(values: Sequence[float | None]) -> list[str]:
    return ["-" if value is None else f"{value:.1f}" for value in values]
