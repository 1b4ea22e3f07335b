"""Intervals and tests against computations by other formulas."""

import math

import numpy as np
import pytest

from resitta.monitor.shadow.comparison import (
    EXACT,
    Z,
    paired_accuracy,
    paired_difference,
    source_ahead_by_chance,
    wilson,
)


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 10), (50, 100), (99, 100), (7, 7)])
def test_the_ends_of_wilsons_interval_solve_its_equation(right: int, count: int) -> None:
    found = wilson(right, count)
    assert found.value == right / count
    for end in (found.low, found.high):
        if 0 < end < 1:
            assert abs(found.value - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / count), rel=1e-9)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_the_interval_of_a_difference_covers_the_truth_as_often_as_it_says() -> None:
    rng, covered, runs = np.random.default_rng(0), 0, 2000
    for _ in range(runs):
        both, adapted, source, neither = rng.multinomial(80, (0.4, 0.2, 0.1, 0.3)).tolist()
        found = paired_difference(adapted, source, both + adapted + source + neither)
        covered += found.low <= 0.1 <= found.high
    assert 0.94 < covered / runs < 0.97


def test_mcnemars_test_is_the_binomial_tail_and_goes_over_into_the_normal_one() -> None:
    assert source_ahead_by_chance(1, 4) == (5 + 1) / 32
    assert source_ahead_by_chance(0, 0) == 1
    exact = source_ahead_by_chance(EXACT * 45 // 100, EXACT * 55 // 100)
    normal = source_ahead_by_chance(EXACT * 45 // 100 + 1, EXACT * 55 // 100 + 1)
    assert normal == pytest.approx(exact, rel=0.02)
    assert source_ahead_by_chance(10**7, 10**7) == pytest.approx(0.5, abs=1e-3)


def test_all_numbers_come_from_the_same_images() -> None:
    found = paired_accuracy(both=5, adapted_only=3, source_only=1, neither=1)
    assert found is not None
    assert (found.labelled, found.adapted.value, found.source.value) == (10, 0.8, 0.6)
    assert found.difference.value == pytest.approx(0.2)
    assert found.difference.low < 0 < found.difference.high
    assert paired_accuracy(0, 0, 0, 0) is None
