"""A table as plain text, Markdown, CSV, LaTeX, or in colour on the terminal.

The paper's numbers and the differences follow the rows that have them, as rows of their own.
"""

import csv
import io
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resitta.errors import require
from resitta.report.paper_comparison import Comparison
from resitta.report.table import Mark, Table


def as_text(table: Table) -> str:
    """Align the columns; `*` follows the best of each. A legend explains the marks.

    >>> from resitta.report.table import Cell, Row
    >>> rows = Row("BN", "bn", (Cell(30.04),)), Row("TENT", "tent", (Cell(28.0, 0.51),), seeds=3)
    >>> print(as_text(Table(("Avg",), rows)))
    Method          Avg
    BN             30.0
    TENT    28.0 ± 0.5*
    <BLANKLINE>
    Error in per cent. * lowest of its column. ± standard deviation over the seeds of a row (3: TENT; 1: the others).
    """
    body = list(_lines(table, {"best": "{}*", "second": "{}", "": "{}"}))
    marked = any(cell.endswith("*") for _, *cells in body for cell in cells)
    return "\n".join([_aligned([["Method", *table.columns], *body]), "", *_legend(table, "* lowest" if marked else "")])


def as_markdown(table: Table) -> str:
    """For GitHub: the best in bold, the second best in italics."""
    lines = _lines(table, {"best": "**{}**", "second": "*{}*", "": "{}"})
    rule = ["---", *("--:" for _ in table.columns)]
    rows = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in (["Method", *table.columns], rule, *lines)
    ]
    marks = "**Bold** is the lowest, *italic* the second lowest" if len(table.rows) > 1 else ""
    return "\n".join([*rows, "", *_legend(table, marks)])


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

    Comments name the packages it needs and how to fit it to the page; the text in between compiles as it is.
    """
    *domains, average = table.columns
    names = [f"\\rotatebox[origin=c]{{45}}{{{latex_escape(name)}}}" for name in domains]
    lines = _lines(table, {"best": "\\textbf{{{}}}", "second": "\\underline{{{}}}", "": "{}"})
    body = [[latex_escape(label), *(cell.replace(" ± ", "$\\pm$") for cell in cells)] for label, *cells in lines]
    time = [f"  Time & \\multicolumn{{{len(names)}}}{{l|}}{{$t\\longrightarrow$}} & \\\\", "  \\midrule"]
    legend = _legend(table, "Bold is the lowest, underlined the second lowest" if len(table.rows) > 1 else "")
    return "\n".join(
        [
            "% \\usepackage{booktabs,graphicx}",
            "% \\resizebox{\\textwidth}{!}{...} around the tabular fits it to the page.",
            *(f"% {line}" for line in legend),
            f"\\begin{{tabular}}{{l|{'c' * len(names)}|c}}",
            "  \\toprule",
            *(time if table.ordered and names else []),
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


def comparison_text(found: Comparison) -> str:
    """Our average errors over the values of something above the paper's, in columns."""
    return "\n".join([found.title, _aligned(_comparison_rows(found))])


def comparison_csv(found: Comparison) -> str:
    """A comparison for other programs."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(_comparison_rows(found))
    return out.getvalue()


def _comparison_rows(found: Comparison) -> list[list[str]]:
    rows = [[found.name, *found.values], ["ours", *_errors(found.ours)]]
    return [*rows, [found.paper_label, *_errors(found.theirs)]] if found.has_paper else rows


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([label.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))])
        for label, *cells in lines
    )


def _legend(table: Table, marks: str) -> list[str]:
    """What the marks mean, in one line, and the notes."""
    several = len({row.task for row in table.rows}) > 1
    ranked = f"{marks} of its column{' among the rows of one task (stream and model)' if several else ''}"
    parts = ["Error in per cent", ranked if marks else "", table.legend]
    return [". ".join(part for part in parts if part) + ".", *table.notes]


def _errors(values: Sequence[float | None]) -> list[str]:
    return ["-" if value is None else f"{value:.1f}" for value in values]


def latex_escape(text: str) -> str:
    r"""Make any text safe in LaTeX, for pdflatex with no packages.

    >>> print(latex_escape("50 % of a_b & c\\d, η → 1"))
    50 \% of a\_b \& c\textbackslash{}d, $\eta$ $\rightarrow$ 1
    """
    return "".join(_LATEX.get(character) or _beyond_ascii(character) for character in text)


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"},
    **{"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"},  # other glyphs in the default encoding
    **{"±": "$\\pm$", "→": "$\\rightarrow$", "−": "$-$", "×": "$\\times$", "·": "$\\cdot$"},
    **{"\n": " ", "\r": " ", "\t": " "},
}


def _beyond_ascii(character: str) -> str:
    """Letters of Latin-1 as they are, small Greek ones as formulas; of others the plain form or the code point."""
    if character.isascii() or ("À" <= character <= "ÿ"):
        return character
    _, greek, letter = unicodedata.name(character, "").partition("GREEK SMALL LETTER ")
    if greek and letter.isalpha() and letter not in ("OMICRON", "FINAL SIGMA"):
        return f"$\\{letter.lower().replace('lamda', 'lambda')}$"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or f"U+{ord(character):04X}"
