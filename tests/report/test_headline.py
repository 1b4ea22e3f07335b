from collections.abc import Callable

import pytest

from resitta.bench.record import RunRecord
from resitta.report.groups import grouped
from resitta.report.headline import headline, runner_up, verb

MakeRun = Callable[..., RunRecord]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (40.0, 10.0, "more than halves the error"),
        (40.0, 20.0, "halves the error"),
        (43.5, 22.4, "almost halves the error"),
        (46.4, 33.5, "lowers the error by 28 %"),
        (50.0, 50.1, "leaves the error as it was"),
        (50.0, 60.0, "raises the error by 20 %"),
        (0.0, 5.0, "leaves the error as it was"),
    ],
)
def test_the_verb_fits_the_numbers(before: float, after: float, said: str) -> None:
    assert verb(before, after) == said


def test_headline_with_and_without_a_source(make_run: MakeRun) -> None:
    source, ours = make_run("source", (41.0, 41.4)), make_run("resitta", (20.0, 20.6))
    assert headline(grouped([source, ours])) == "ResiTTA halves the error: 41.2 % → 20.3 %"
    assert headline(grouped([ours])) == "ResiTTA reaches an average error of 20.3 %"
    assert headline(grouped([source])) == "Source reaches an average error of 41.2 %"


def test_the_runner_up_may_be_better(make_run: MakeRun) -> None:
    source, bn = make_run("source", (5.0, 5.0)), make_run("bn", (30.0, 30.0))
    rotta, ours = make_run("rotta", (25.0, 25.0)), make_run("resitta", (20.0, 20.0))
    assert runner_up(grouped([source, bn, rotta, ours])) == "The best of the 2 other methods, RoTTA, reaches 25.0 %."
    assert runner_up(grouped([rotta, ours])) == "The other method, RoTTA, reaches 25.0 %."
    assert runner_up(grouped([make_run("rotta", (1.0, 1.0)), ours])) == "RoTTA does better here: 1.0 %."
    assert runner_up(grouped([source, ours])) == ""
