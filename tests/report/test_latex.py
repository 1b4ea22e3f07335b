import shutil
import subprocess
from pathlib import Path

import pytest

from resitta.report.formats import as_latex
from resitta.report.latex import latex_escape
from resitta.report.table import Cell, Row, Table

ODD = "50 % & a_{b}^c~#$ \\ <x|y> η λ ς ± → − × ² é Ł 漢 -- \n"
TABLE = Table(
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
@pytest.mark.parametrize("table", [TABLE, Table(("Avg",), (Row("a", "a", (Cell(1.0),)),))])
def test_it_compiles_as_it_is_with_the_packages_it_names(table: Table, tmp_path: Path) -> None:
    latex = as_latex(table)
    packages = latex.splitlines()[0].removeprefix("% ")
    document = ["\\documentclass{article}", packages, "\\begin{document}", latex, "\\end{document}"]
    (tmp_path / "table.tex").write_text("\n".join(document), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 1000
