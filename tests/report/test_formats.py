import csv
import io
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from resitta.bench.experiments import METHODS
from resitta.method import get_method
from resitta.report.formats import (
    as_csv,
    as_latex,
    as_markdown,
    as_rich,
    as_text,
    comparison_csv,
    comparison_text,
    latex_escape,
)
from resitta.report.paper_comparison import Comparison
from resitta.report.table import Cell, Row, Table

TABLE = Table(
    ("snow", "a_b", "Avg"),
    (
        Row("BN", "bn", (Cell(30.0), Cell(10.0), Cell(20.0))),
        Row("50 % & more", "x", (Cell(20.0), Cell(10.0), Cell(15.0))),
        Row("ResiTTA", "resitta", (Cell(25.0, 0.25), Cell(12.0, 0.0), Cell(18.5, 1.0)), (24.0, 12.04, 18.0), seeds=3),
    ),
    notes=("A note.",),
)


def test_text_is_aligned() -> None:
    assert as_text(TABLE).splitlines() == [
        "Method                snow         a_b         Avg",
        "BN                    30.0       10.0*        20.0",
        "50 % & more          20.0*       10.0*       15.0*",
        "ResiTTA         25.0 ± 0.2  12.0 ± 0.0  18.5 ± 1.0",
        "ResiTTA, paper        24.0        12.0        18.0",
        "difference            +1.0        +0.0        +0.5",
        "",
        "Error in per cent. * lowest of its column. ± standard deviation over the seeds of a row (3: ResiTTA; 1: the "
        "others).",
        "A note.",
    ]


def test_the_legend_explains_only_the_marks_there_are() -> None:
    alone = Table(("Avg",), (Row("BN", "bn", (Cell(30.0),)),))
    assert as_text(alone).endswith("\nError in per cent.")
    seeds = Table(("Avg",), (Row("BN", "bn", (Cell(30.0, 1.0),), seeds=3),))
    assert as_text(seeds).endswith("Error in per cent. ± standard deviation over 3 seeds.")
    rows = tuple(Row(name, name, (Cell(error),), task=task) for name, error, task in (("a", 1, "x"), ("b", 2, "y")))
    assert "*" not in as_text(Table(("Avg",), rows)), "rows of different tasks are not ranked"
    assert "among the rows of one task" in as_text(Table(("Avg",), (*rows, *rows)))


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
    comments = [line for line in latex if line.startswith("%")]
    latex = latex[len(comments) :]
    assert comments[0] == "% \\usepackage{booktabs,graphicx}"
    assert comments[-1] == "% A note."
    assert latex[0] == "\\begin{tabular}{l|cc|c}"
    assert latex[4] == "  Method & \\rotatebox[origin=c]{45}{snow} & \\rotatebox[origin=c]{45}{a\\_b} & Avg \\\\"
    assert latex[7] == "  50 \\% \\& more & \\textbf{20.0} & \\textbf{10.0} & \\textbf{15.0} \\\\"
    assert latex[8] == "  ResiTTA & \\underline{25.0$\\pm$0.2} & 12.0$\\pm$0.0 & \\underline{18.5$\\pm$1.0} \\\\"
    assert "\\toprule" in latex[1]
    assert latex[-2:] == ["  \\bottomrule", "\\end{tabular}"]
    columns = {line.count(" & ") for line in latex if " & " in line and "multicolumn" not in line}
    assert columns == {3}


def test_mixed_domains_have_no_arrow_of_time() -> None:
    assert "longrightarrow" in as_latex(TABLE)
    assert "longrightarrow" not in as_latex(replace(TABLE, ordered=False))


def test_comparisons_show_the_paper_only_where_it_has_numbers() -> None:
    about = {"title": "Sweep of eta", "name": "eta", "values": ("0", "1"), "dataset": "cifar10"}
    alone = Comparison(ours=(22.0, None), theirs=(None, None), **about)  # type: ignore[arg-type]
    assert comparison_text(alone).splitlines() == ["Sweep of eta", "eta      0  1", "ours  22.0  -"]
    both = Comparison(ours=(22.0, None), theirs=(1.0, 2.0), model="wrn28x10", **about)  # type: ignore[arg-type]
    lines = list(csv.reader(io.StringIO(comparison_csv(both))))
    assert lines == [["eta", "0", "1"], ["ours", "22.0", "-"], ["paper, wrn28x10", "1.0", "2.0"]]


def test_rich_marks_best_and_second_and_fits_80_characters() -> None:
    console = pytest.importorskip("rich.console")
    titles = [(name, get_method(name).title) for name in METHODS]
    paper = Table(TABLE.columns, tuple(Row(title, name, TABLE.rows[2].cells) for name, title in titles))
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


ODD = "50 % & a_{b}^c~#$ \\ <x|y> η λ ς ± → − × ² é Ł 漢 -- \n"
DOCUMENT = Table(
    (ODD, "fog", "Avg"),
    (
        Row(ODD, "x", (Cell(20.0, 0.5), Cell(10.0, 0.5), Cell(15.0, 0.5)), (1.0, 2.0, 3.0), seeds=2),
        Row("BN", "bn", (Cell(30.0), Cell(10.0), Cell(20.0))),
    ),
    notes=(f"A note: {ODD.strip()}.",),
)


def test_every_special_character_is_escaped() -> None:
    assert latex_escape("a_{b}^c~#$") == "a\\_\\{b\\}\\textasciicircum{}c\\textasciitilde{}\\#\\$"
    assert latex_escape("<|>") == "\\textless{}\\textbar{}\\textgreater{}"
    assert latex_escape("ηλ±→−é²") == "$\\eta$$\\lambda$$\\pm$$\\rightarrow$$-$é2"
    assert latex_escape("漢") == "U+6F22"
    assert latex_escape("two\nlines") == "two lines"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("table", [DOCUMENT, Table(("Avg",), (Row("a", "a", (Cell(1.0),)),))])
def test_it_compiles_as_it_is_with_the_packages_it_names(table: Table, tmp_path: Path) -> None:
    latex = as_latex(table)
    packages = latex.splitlines()[0].removeprefix("% ")
    document = ["\\documentclass{article}", packages, "\\begin{document}", latex, "\\end{document}"]
    (tmp_path / "table.tex").write_text("\n".join(document), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 1000
