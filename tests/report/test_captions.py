from collections.abc import Callable
from typing import Any

import pytest

from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.report.captions import drift_caption, error_caption, facts, headline, heat_words, lead, rival, seeds, verb
from resitta.report.groups import Group, grouped
from resitta.report.palette import hero
from resitta.report.table import table_of

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


MakeIdentity = Callable[..., dict[str, Any]]


def said(groups: tuple[Group, ...]) -> list[str]:
    return [" ".join(fact) for fact in facts(groups, hero(groups))]


def test_seeds_are_counted_per_row(make_run: MakeRun) -> None:
    three = [make_run("resitta", seed=seed) for seed in (1, 2, 3)]
    assert seeds(grouped([make_run("bn", seed=1), *three])) == "1 to 3 seeds"
    assert seeds(grouped([make_run("bn", seed=1), make_run("pl", seed=1)])) == "1 seed each"
    assert seeds(grouped(three)) == "3 seeds"


def test_facts_count_methods_rows_and_images(make_run: MakeRun) -> None:
    groups = grouped([make_run("bn"), make_run("resitta")])
    assert said(groups) == [
        "15.0 % average error of ResiTTA",
        "400 images per second with ResiTTA",
        "200 images from 2 domains, one stream per seed",
        "2 methods, 1 seed each",
    ]
    variants = [make_run("tent", settings={"lr": lr}) for lr in (1, 2)]
    assert said(grouped([*variants, make_run("bn")]))[-1] == "3 rows of 2 methods, 1 seed each"
    visits = make_run(errors=(1.0,) * 4, domains=("fog", "snow") * 2)
    assert said(grouped([visits]))[2] == "200 images from 2 domains in 4 visits, one stream per seed"
    assert said(grouped([visits]))[3] == "1 method, 1 seed"


def test_the_drift_is_described_as_it_was_measured(make_run: MakeRun) -> None:
    def caption(*values: float) -> str:
        at = tuple(range(len(values)))
        groups = grouped([make_run("bn"), make_run("resitta", drift_at=at, drift_over_time=values)])
        return drift_caption(groups, hero(groups))

    assert "ResiTTA 0.2 and 0.3 (rising); BN 0.2 and 0.3 (rising)." in caption(0.1, 0.2, 0.3)
    assert "ResiTTA 0.3 and 0.1 (falling)" in caption(0.1, 0.3, 0.1)
    assert "ResiTTA 0.3 and 0.31 (about the same)" in caption(0.1, 0.3, 0.31)
    assert "ResiTTA" not in caption(0.0, 0.0, 0.0), "it did not drift"
    assert "ResiTTA" not in caption(0.1, 0.2), "too few values"


def test_the_heat_table_is_explained_as_it_is(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    def caption(*runs: RunRecord) -> str:
        groups = grouped(runs)
        return "".join(heat_words(groups, table_of(groups)).values())

    assert "the domains follow each other from left to right" in caption(make_run())
    assert "the domains are mixed in the stream" in caption(make_run(borders=()))
    assert "a column is one visit" in caption(make_run(errors=(1.0,) * 4, domains=("fog", "snow") * 2))
    assert "±" not in caption(make_run())
    several = caption(make_run("bn", seed=1), *(make_run(seed=seed) for seed in (1, 2)))
    assert several.endswith("± standard deviation over the seeds of a row (2: TENT; 1: the others).")
    other = make_run(identity=make_identity(severity=3))
    assert "among the rows of one task" in caption(make_run(identity=make_identity()), other)


def test_points_over_time_say_how_many_samples_they_are(make_run: MakeRun) -> None:
    def caption(points: int, *more: RunRecord) -> str:
        run = make_run("resitta", samples=20 * points, error_over_time=(1.0,) * points)
        groups = grouped([run, *more])
        return error_caption(groups, hero(groups))

    assert caption(10).startswith("Each point is the error over 20 samples.")
    assert caption(100).startswith("Each point is the error over 60 samples."), "the mean of three neighbours"
    assert "another length: TENT" in caption(100, make_run())
