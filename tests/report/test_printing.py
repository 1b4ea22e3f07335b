import csv
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resitta.bench.record import RunRecord, settings_of
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import UnknownName
from resitta.method import create
from resitta.report.printing import FORMS, report_text

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


@pytest.fixture
def runs(make_run: MakeRun) -> list[RunRecord]:
    return [make_run(name, (error,) * 15, domains=CORRUPTIONS) for name, error in (("bn", 30.0), ("tent", 20.0))]


def test_the_best_two_rows_are_compared(runs: list[RunRecord]) -> None:
    sentence = (
        "TENT minus BN: -10.00 points, 95 % bootstrap interval -10.00 to -10.00 (15 domains, 1 seed); TENT is better."
    )
    assert report_text(runs, "text").endswith(f"\n{sentence}")
    assert report_text(runs, "markdown").endswith(f"\n\n{sentence}")
    assert report_text(runs, "latex").endswith(f"\n% {sentence}")
    assert "points" not in report_text(runs, "csv")


def test_a_highlighted_row_is_compared_too(runs: list[RunRecord], make_run: MakeRun) -> None:
    mine = make_run("mine", (40.0,) * 15, domains=CORRUPTIONS)
    assert "mine minus TENT: +20.00" in report_text([*runs, mine], "text", highlight="mine")
    assert report_text(runs, "text", highlight="tent").count("points") == 1
    with pytest.raises(UnknownName, match="no row is called 'pl'"):
        report_text(runs, "text", highlight="pl")


@pytest.mark.parametrize("form", FORMS)
def test_every_set_of_domains_has_a_table(runs: list[RunRecord], make_run: MakeRun, form: str) -> None:
    text = report_text([*runs, make_run("rotta")], form, highlight="rotta")
    assert text.count("Avg") == 2
    headings = [line for line in text.splitlines() if line.removeprefix("## ").removeprefix("% ")[:10] == "2 domains:"]
    assert len(headings) == (form != "csv")


def test_csv_is_nothing_but_csv(runs: list[RunRecord], make_run: MakeRun) -> None:
    lines = list(csv.reader(io.StringIO(report_text([*runs, make_run("rotta")], "csv"))))
    assert [len(line) for line in lines] == [18, 18, 18, 0, 5, 5]


def test_experiments_stand_below_the_usual_rows(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    one = make_run("resitta", (20.0,) * 15, domains=CORRUPTIONS, samples=150_000, identity=make_identity())
    usual, other = (replace(one, settings=settings_of(create("resitta", eta=eta))) for eta in (0.01, 0.05))
    text = report_text([usual, other], "text", dataset="cifar10")
    table, sweep = text.split("\n\nSweep of eta\n")
    assert "eta=0.05" not in table
    assert "ResiTTA, paper" in table
    assert sweep.splitlines()[1].split() == ["ours", "-", "-", "20.0", "20.0", "-"]
    assert "eta=0.05" in report_text([usual, other], "text")
    latex = report_text([usual, other], "latex", dataset="cifar10")
    assert latex.splitlines()[-1].startswith("% paper")
    assert report_text([usual, other], "markdown", dataset="cifar10").endswith("\n```")
    assert report_text([usual, other], "csv", dataset="cifar10").splitlines()[-2].startswith("ours,-,-,20.0")
