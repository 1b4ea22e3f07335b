import pytest

from resitta.report.table import Cell, Row, Table, ranks


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
