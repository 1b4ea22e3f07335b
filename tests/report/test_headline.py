from collections.abc import Callable

import pytest

from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.report.groups import grouped
from resitta.report.headline import headline, lead, rival, verb
from resitta.report.palette import hero

MakeRun = Callable[..., RunRecord]


@pytest.fixture
def run(make_run: MakeRun) -> Callable[..., RunRecord]:
    """A run over six domains whose errors differ by `spread` in turn."""

    def make(method: str, error: float, spread: float = 0.0) -> RunRecord:
        errors = tuple(error + spread * sign for sign in (1, -1, 1, -1, 1, -1))
        return make_run(method, errors, domains=CORRUPTIONS[:6])

    return make


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (40.0, 10.0, "more than halves the error"),
        (40.0, 20.0, "halves the error"),
        (43.5, 22.4, "almost halves the error"),
        (46.4, 33.5, "lowers the error by 12.9 points"),
        (50.0, 50.04, "leaves the error as it was"),
        (50.0, 60.0, "raises the error by 10.0 points"),
        (0.0, 5.0, "raises the error by 5.0 points"),
    ],
)
def test_the_verb_fits_the_numbers(before: float, after: float, said: str) -> None:
    assert verb(before, after) == said


def test_a_winner_is_named_where_the_interval_excludes_zero(run: MakeRun) -> None:
    groups = grouped([run("source", 41.2), run("rotta", 22.0), run("resitta", 20.3)])
    assert headline(groups) == "ResiTTA halves the error: 41.2 % → 20.3 %"
    assert lead(groups).startswith("The best of the others, RoTTA, has 22.0 %. ResiTTA minus RoTTA: -1.70 points")
    assert headline(groups[1:]) == "ResiTTA has the lowest error: 20.3 %"


def test_level_rows_have_no_winner(run: MakeRun) -> None:
    groups = grouped([run("source", 41.2), run("rotta", 20.4, spread=5.0), run("resitta", 20.3)])
    assert headline(groups) == "ResiTTA and RoTTA are level: 20.3 % and 20.4 %"
    assert lead(groups).endswith("the two are level. Source has 41.2 %.")


def test_another_method_may_win(run: MakeRun) -> None:
    groups = grouped([run("source", 41.2), run("rotta", 12.0), run("resitta", 20.3)])
    assert headline(groups) == "RoTTA does better than ResiTTA: 12.0 % against 20.3 %"
    source = grouped([run("source", 5.0), run("resitta", 20.3)])
    assert headline(source) == "Source does better than ResiTTA: 5.0 % against 20.3 %"


def test_too_few_values_and_single_rows_have_no_winner(make_run: MakeRun) -> None:
    source, ours = make_run("source", (41.0, 41.4)), make_run("resitta", (20.0, 20.6))
    assert headline(grouped([source, ours])) == "ResiTTA reaches an average error of 20.3 %"
    assert "too few for an interval" in lead(grouped([source, ours]))
    assert headline(grouped([source])) == "Source reaches an average error of 41.2 %"
    assert lead(grouped([source])) == ""


def test_the_rival_is_the_best_of_the_same_task(run: MakeRun, make_run: MakeRun) -> None:
    elsewhere = make_run("rotta", (1.0,) * 6, domains=CORRUPTIONS[:6], samples=999)
    groups = grouped([run("bn", 30.0), run("resitta", 20.0), elsewhere])
    other = rival(groups, hero(groups))
    assert other
    assert other.method == "bn"


def test_a_highlighted_row_is_measured_by_better_variants_too(run: MakeRun, make_run: MakeRun) -> None:
    better = make_run("tent", (10.0,) * 6, domains=CORRUPTIONS[:6], settings={"lr": 1.0})
    groups = grouped([run("bn", 30.0), run("tent", 20.0), better])
    ours = hero(groups, "TENT lr=0.001")
    assert headline(groups, ours) == "TENT lr=1.0 does better than TENT lr=0.001: 10.0 % against 20.0 %"
    assert headline(groups, hero(groups, "tent")) == "TENT lr=1.0 has the lowest error: 10.0 %"
