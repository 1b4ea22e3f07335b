from collections.abc import Callable
from typing import Any

from resitta.bench.record import RunRecord
from resitta.report.captions import drift_caption, error_caption, facts, heat_words, seeds
from resitta.report.groups import Group, grouped
from resitta.report.palette import hero
from resitta.report.tables import table_of

MakeRun = Callable[..., RunRecord]
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
