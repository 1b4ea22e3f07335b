import statistics
from collections.abc import Callable
from typing import Any

import pytest

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.report.table import Cell, Row, Table, columns_of, error_table, ranks


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([3.0, 1.0, 2.0], ["", "best", "second"]),
        ([1.0, 1.0, 2.0], ["best", "best", ""]),
        ([1.0, 2.0, 2.0], ["best", "second", "second"]),
        ([1.04, 1.0, 2.0], ["best", "best", ""]),
        ([float("nan"), 1.0, 2.0], ["", "best", "second"]),
        ([1.0], [""]),
    ],
)
def test_marks_and_ties(values: list[float], marks: list[str]) -> None:
    assert list(ranks(values)) == marks


def test_marks_of_a_row_are_taken_column_by_column() -> None:
    rows = (Row("a", "a", (Cell(1.0), Cell(5.0))), Row("b", "b", (Cell(2.0), Cell(4.0))))
    table = Table(("snow", "Avg"), rows)
    assert (table.marks(0), table.marks(1)) == (("best", "second"), ("second", "best"))


def test_differences_are_rounded_and_never_minus_zero() -> None:
    row = Row("a", "a", (Cell(10.02), Cell(9.94)), (10.0, 10.0))
    assert [f"{value:+.1f}" for value in row.differences] == ["+0.0", "-0.1"]
    assert str(Row("a", "a", (Cell(9.98),), (10.0,)).differences[0]) == "0.0"


def test_a_cell_prints_its_deviation_when_it_has_one() -> None:
    assert (str(Cell(1.26)), str(Cell(1.26, 0.04))) == ("1.3", "1.3 ± 0.0")


MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


def test_mean_and_deviation_over_seeds(make_run: MakeRun) -> None:
    table = error_table([make_run(), make_run(errors=(14.0, 30.0), seed=1), make_run("bn", (1.0, 3.0))])
    tent, bn = table.rows
    assert table.columns == ("snow", "fog", "Avg")
    assert [cell.mean for cell in tent.cells] == [12.0, 25.0, 18.5]
    assert [cell.std for cell in tent.cells] == pytest.approx(
        [statistics.stdev([10, 14]), statistics.stdev([20, 30]), statistics.stdev([15, 22])]
    )
    assert [str(cell) for cell in bn.cells] == ["1.0", "3.0", "2.0"]


def test_a_stream_that_recurs_has_a_column_per_visit(make_run: MakeRun) -> None:
    run = make_run(errors=(10.0, 20.0, 30.0, 50.0), domains=("snow", "fog", "snow", "fog"))
    table = error_table([run])
    assert table.columns == ("visit 1", "visit 2", "Avg")
    assert [cell.mean for cell in table.rows[0].cells] == [15.0, 40.0, 27.5]


def test_visits_count_per_domain() -> None:
    assert columns_of(["snow", "snow", "fog", "snow"]) == {"visit 1": [0, 2], "visit 2": [1], "visit 3": [3]}


def test_the_paper_stands_beside_its_methods(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    errors = tuple(error + 0.5 for error in PAPER.table1["tent"].errors)
    about = {"domains": CORRUPTIONS, "samples": 150_000}
    runs = [make_run(name, errors, identity=make_identity(), **about) for name in ("tent", "mine")]
    mild = make_run("tent", errors, identity=make_identity(severity=3), **about)
    tent, mine, other = error_table([*runs, mild], paper=PAPER.table1).rows
    assert tent.paper[-1] == 86.0
    assert set(tent.differences[:-1]) == {0.5}
    assert mine.paper == mine.differences == other.paper == ()
    notes = error_table([*runs, mild], paper=PAPER.table1).notes
    assert notes == ("No paper numbers for TENT (severity 3): severity 3 (paper: 5).",)


def test_runs_that_differ_in_more_than_the_seed_are_rows_of_their_own(
    make_run: MakeRun, make_identity: MakeIdentity
) -> None:
    runs = [make_run(identity=make_identity(severity=s), errors=(s, s), seed=s) for s in (1, 5)]
    table = error_table(runs)
    assert [(row.label, str(row.cells[-1])) for row in table.rows] == [
        ("TENT (severity 1)", "1.0"),
        ("TENT (severity 5)", "5.0"),
    ]


def test_rows_are_ranked_among_those_of_their_task(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    runs = [
        make_run(name, (error, error), identity=make_identity(severity=severity))
        for severity, errors in ((1, (5.0, 6.0)), (5, (50.0, 40.0)))
        for name, error in zip(("bn", "tent"), errors, strict=True)
    ]
    table = error_table(runs)
    assert [table.marks(number)[-1] for number in range(4)] == ["best", "second", "second", "best"]


def test_mixed_domains_have_no_order(make_run: MakeRun) -> None:
    assert error_table([make_run()]).ordered
    assert not error_table([make_run(borders=())]).ordered
