import statistics
from collections.abc import Callable

import pytest

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord
from resitta.errors import BadData
from resitta.report.tables import columns_of, error_table
from resitta.streams.corruptions import CORRUPTIONS

MakeRun = Callable[..., RunRecord]


def test_mean_and_deviation_over_seeds(make_run: MakeRun) -> None:
    table = error_table([make_run(errors=(10.0, 20.0)), make_run(errors=(14.0, 30.0)), make_run("bn", (1.0, 3.0))])
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


def test_the_paper_stands_beside_its_methods(make_run: MakeRun) -> None:
    errors = tuple(error + 0.5 for error in PAPER.table1["tent"].errors)
    runs = [make_run("tent", errors, domains=CORRUPTIONS), make_run("mine", errors, domains=CORRUPTIONS)]
    tent, mine = error_table(runs, paper=PAPER.table1).rows
    assert tent.paper[-1] == 86.0
    assert set(tent.differences[:-1]) == {0.5}
    assert mine.paper == mine.differences == ()
    with pytest.raises(BadData, match="fifteen corruptions"):
        error_table([make_run()], paper=PAPER.table1)
