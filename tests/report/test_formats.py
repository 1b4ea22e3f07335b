import csv
import io

import pytest

from resitta.report.formats import as_csv, as_latex, as_markdown, as_rich, as_text, latex_escape
from resitta.report.groups import TITLES
from resitta.report.table import Cell, Row, Table

TABLE = Table(
    ("snow", "a_b", "Avg"),
    (
        Row("BN", "bn", (Cell(30.0), Cell(10.0), Cell(20.0))),
        Row("50 % & more", "x", (Cell(20.0), Cell(10.0), Cell(15.0))),
        Row("ResiTTA", "resitta", (Cell(25.0, 0.25), Cell(12.0, 0.0), Cell(18.5, 1.0)), (24.0, 12.04, 18.0)),
    ),
)


def test_text_is_aligned() -> None:
    assert as_text(TABLE).splitlines() == [
        "Method                snow         a_b         Avg",
        "BN                    30.0       10.0*        20.0",
        "50 % & more          20.0*       10.0*       15.0*",
        "ResiTTA         25.0 ± 0.2  12.0 ± 0.0  18.5 ± 1.0",
        "ResiTTA, paper        24.0        12.0        18.0",
        "difference            +1.0        +0.0        +0.5",
    ]


def test_markdown() -> None:
    lines = as_markdown(TABLE).splitlines()
    assert lines[:2] == ["| Method | snow | a_b | Avg |", "| --- | --: | --: | --: |"]
    assert lines[2] == "| BN | 30.0 | **10.0** | 20.0 |"
    assert lines[4] == "| ResiTTA | *25.0 ± 0.2* | 12.0 ± 0.0 | *18.5 ± 1.0* |"
    assert "a\\|b" in as_markdown(Table(("Avg",), (Row("a|b", "x", (Cell(1.0),)),)))


def test_csv_reads_back_in_full_precision() -> None:
    table = Table(("Avg",), (Row("a,b", "x", (Cell(1 / 3, 2 / 3),), (0.4,)),))
    head, *lines = csv.reader(io.StringIO(as_csv(table)))
    assert head == ["method", "value", "Avg"]
    assert [(line[0], line[1], float(line[2])) for line in lines] == [
        ("a,b", "mean", 1 / 3),
        ("a,b", "std", 2 / 3),
        ("a,b", "paper", 0.4),
    ]


def test_latex_has_the_papers_layout() -> None:
    latex = as_latex(TABLE).splitlines()
    assert latex[0] == "\\begin{tabular}{l|cc|c}"
    assert latex[4] == "  Method & \\rotatebox[origin=c]{45}{snow} & \\rotatebox[origin=c]{45}{a\\_b} & Avg \\\\"
    assert latex[7] == "  50 \\% \\& more & \\textbf{20.0} & \\textbf{10.0} & \\textbf{15.0} \\\\"
    assert latex[8] == "  ResiTTA & \\underline{25.0$\\pm$0.2} & 12.0$\\pm$0.0 & \\underline{18.5$\\pm$1.0} \\\\"
    assert "\\toprule" in latex[1]
    assert "\\bottomrule" in latex[-2]


def test_every_special_character_is_escaped() -> None:
    assert latex_escape("a_{b}^c~#$") == "a\\_\\{b\\}\\textasciicircum{}c\\textasciitilde{}\\#\\$"


def test_rich_marks_best_and_second_and_fits_80_characters() -> None:
    console = pytest.importorskip("rich.console")
    paper = Table(TABLE.columns, tuple(Row(title, name, TABLE.rows[2].cells) for name, title in TITLES.items()))
    out = console.Console(width=80, record=True, file=io.StringIO())
    out.print(as_rich(paper))
    assert "…" not in out.export_text()
    columns = [list(column.cells) for column in as_rich(TABLE).columns]
    assert [str(column[0].style) for column in columns[1:]] == ["", "bold green", "underline"]
    assert [column[-1] for column in columns] == ["± seeds", "", "", "1.0"]


def test_names_are_no_markup_in_the_terminal() -> None:
    console = pytest.importorskip("rich.console")
    out = console.Console(width=80, record=True, file=io.StringIO())
    out.print(as_rich(Table(("Avg",), (Row("[bold]x", "x", (Cell(1.0),)),))))
    assert "[bold]x" in out.export_text()
