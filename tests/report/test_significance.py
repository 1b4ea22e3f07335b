import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from resitta.bench.record import RunRecord
from resitta.data.corruptions import CORRUPTIONS
from resitta.report.groups import Group, grouped
from resitta.report.significance import best_two, bootstrap_interval, difference, verdict, verdicts

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


def rows(make_run: MakeRun, **errors: list[tuple[float, ...]]) -> list[Group]:
    """One group per method; the runs of a method have the seeds 0, 1, ..."""
    runs = [
        make_run(method, values, seed=seed, domains=CORRUPTIONS[: len(values)])
        for method, some in errors.items()
        for seed, values in enumerate(some)
    ]
    return list(grouped(runs))


def test_one_seed_agrees_with_all_resamples() -> None:
    values = np.array([[3.0, -1.0, 0.5, 4.0, 1.5]])
    mean = values.mean()
    every = [mean + np.sqrt(5 / 4) * (np.mean(draw) - mean) for draw in itertools.product(values[0], repeat=5)]
    interval = bootstrap_interval(values, draws=200_000)
    assert interval == pytest.approx(np.quantile(every, (0.025, 0.975)), abs=0.03)


def test_seeds_and_domains_agree_with_all_resamples() -> None:
    values = np.add.outer([1.0, 0.0, -2.0], [0.0, 2.0, -1.0, 3.0, 1.0]) + np.random.default_rng(0).normal(size=(3, 5))
    mean = values.mean()

    def means(effects: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
        count = len(effects)
        return [np.sqrt(count / (count - 1)) * np.mean(draw) for draw in itertools.product(effects, repeat=count)]

    every = mean + np.add.outer(means(values.mean(axis=1) - mean), means(values.mean(axis=0) - mean))
    interval = bootstrap_interval(values, draws=200_000)
    assert interval == pytest.approx(np.quantile(every, (0.025, 0.975)), abs=0.03)


@pytest.mark.parametrize(("seeds", "between_seeds"), [(1, 0.0), (3, 0.2), (10, 1.0)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(seeds: int, between_seeds: float) -> None:
    rng, truth, hits = np.random.default_rng(seeds), -0.7, 0
    for _ in range(400):
        effects = between_seeds * rng.normal(size=(seeds, 1)) + 2 * rng.normal(size=(1, 15))
        interval = bootstrap_interval(truth + effects + rng.normal(size=(seeds, 15)), draws=1000)
        assert interval
        hits += interval[0] <= truth <= interval[1]
    assert 0.88 <= hits / 400 <= 0.98


def test_domains_shared_by_the_seeds_are_not_independent_draws() -> None:
    per_domain = np.random.default_rng(0).normal(size=15)
    narrow, wide = bootstrap_interval(per_domain[None]), bootstrap_interval(np.tile(per_domain, (10, 1)))
    assert narrow == pytest.approx(wide, abs=0.05), "the same differences in ten seeds say no more about other domains"


def test_the_interval_is_the_same_every_time() -> None:
    values = np.random.default_rng(0).normal(size=(3, 15))
    assert bootstrap_interval(values) == bootstrap_interval(values)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 4), (4, 1)])
def test_too_few_values_have_no_interval(shape: tuple[int, int]) -> None:
    assert bootstrap_interval(np.ones(shape)) is None


def test_pairs_are_made_on_common_seeds(make_run: MakeRun) -> None:
    one, two = rows(make_run, bn=[(10.0,) * 5, (0.0,) * 5], tent=[(12.0,) * 5, (3.0,) * 5, (99.0,) * 5])
    found = difference(one, two)
    assert found
    assert (found.mean, found.domains, found.seeds) == (-2.5, 5, 2)
    half = 0.5 * np.sqrt(2)  # both draws are the same seed in half of the resamples
    assert found.interval == pytest.approx((-2.5 - half, -2.5 + half))
    assert found.distinct
    other = Group("other", tuple(run for run in two.runs if run.seed == 2))
    assert difference(one, other) is None
    assert "no seed in common" in verdict(one, other)


def test_rows_of_different_tasks_are_not_compared(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    runs = [make_run(identity=make_identity(severity=severity)) for severity in (3, 5)]
    runs += [make_run("bn", (30.0, 40.0), identity=make_identity(severity=5))]
    mild, severe, bn = grouped(runs)
    assert difference(mild, severe) is None
    assert mild.label == "TENT (severity 3)"
    assert [sentence.partition(":")[0] for sentence in verdicts([mild, severe, bn])] == ["TENT minus BN"]


def test_visits_and_severities_of_a_corruption_are_one_domain(make_run: MakeRun) -> None:
    for domains in (("snow", "fog") * 5, ("snow 1", "fog 1", "snow 2", "fog 2", "snow 3")):
        runs = [make_run(name, (1.0,) * len(domains), domains=domains) for name in ("bn", "tent")]
        found = difference(*grouped(runs))
        assert found
        assert (found.domains, found.interval) == (2, None)


def test_sentences(make_run: MakeRun) -> None:
    bn, tent, pl = rows(make_run, bn=[(10.0,) * 5], tent=[(12.0,) * 5], pl=[(9.0, 11.0, 10.0, 8.0, 12.1)])
    assert verdict(bn, tent) == (
        "BN minus TENT: -2.00 points, 95 % bootstrap interval -2.00 to -2.00 (5 domains, 1 seed); BN is better."
    )
    assert verdict(tent, bn).endswith("BN is better.")
    assert verdict(bn, pl).endswith("the two are level.")
    assert best_two([tent, pl, bn]) == (bn, pl)
    assert best_two([tent]) is None
    few = rows(make_run, bn=[(10.0, 11.0)], tent=[(12.0, 13.0)])
    assert verdict(*few) == "BN minus TENT: -2.00 points (2 domains, 1 seed: too few for an interval)."
