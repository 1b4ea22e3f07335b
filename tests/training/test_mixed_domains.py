import copy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from resitta.errors import BadState
from resitta.training.mixed_domains import MixedDomains, are_mixed, k_means, left_of_normal

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def clouds(n: int, members: Ints, spread: float = 0.1, seed: int = 0) -> Floats:
    """Signatures around four centres that are one apart."""
    return np.random.default_rng(seed).normal(0, spread, (n, 9)) + np.eye(9)[members % 4]


def side_by_side(n: int, seed: int = 0) -> Floats:
    return clouds(n, np.random.default_rng(seed + 1).integers(0, 4, n), seed=seed)


def one_domain(n: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 9)) @ rng.normal(size=(9, 9))


def test_groups_are_those_of_the_nearest_centre_and_centres_their_means() -> None:
    rows = side_by_side(200)
    centres, groups, left = k_means(rows, 4)
    squares = np.array([[sum((row - centre) ** 2) for centre in centres] for row in rows])
    assert groups.tolist() == squares.argmin(axis=1).tolist()
    assert left == pytest.approx(np.mean(squares.min(axis=1)))
    for group in range(4):
        np.testing.assert_allclose(centres[group], rows[groups == group].mean(axis=0))
    assert left < 0.11  # 9 · 0.1²: every cloud has a centre


def test_more_groups_than_distinct_rows_are_no_trouble() -> None:
    centres, groups, left = k_means(np.repeat(np.eye(9)[:2], 4, axis=0), 4)
    assert np.isfinite(centres).all()
    assert left == 0
    assert len(set(groups.tolist())) <= 4


def test_a_normal_cloud_leaves_what_a_normal_cloud_leaves() -> None:
    rows = one_domain(512, seed=3)
    assert k_means(rows, 4)[2] / left_of_normal(rows, 4) == pytest.approx(1, abs=0.1)
    assert k_means(side_by_side(512), 4)[2] < 0.5 * left_of_normal(side_by_side(512), 4)


def test_neighbours_that_share_a_group_more_often_than_by_chance() -> None:
    rng = np.random.default_rng(0)
    shuffled, runs = rng.integers(0, 4, 512), np.repeat(np.arange(8) % 4, 64)
    assert are_mixed(shuffled)
    assert not are_mixed(runs)
    assert not are_mixed(np.where(rng.random(512) < 0.3, np.roll(shuffled, 1), np.repeat(np.arange(128) % 4, 4)))


@pytest.mark.parametrize("batch", [1, 64, 200])
def test_it_turns_on_for_domains_side_by_side_and_off_for_one(batch: int) -> None:
    mixed, rows = MixedDomains(4), np.concatenate((side_by_side(600), one_domain(600)))
    changed = [start + batch for start in range(0, len(rows), batch) if mixed(rows[start : start + batch])]
    assert changed == [-(-look // batch) * batch for look in (512, 1024)]
    assert not mixed.on


@pytest.mark.parametrize("seed", range(6))
def test_it_stays_off_in_one_domain_and_where_domains_follow_each_other(seed: int) -> None:
    stays = MixedDomains(4)
    assert not any(stays(batch) for batch in np.split(one_domain(2048, seed), 32))
    in_turn = MixedDomains(4)
    rows = clouds(2048, np.repeat(np.arange(32), 64), seed=seed)
    assert not any(in_turn(batch) for batch in np.split(rows, 32))
    assert not stays.on
    assert not in_turn.on


def test_images_go_to_the_group_whose_centre_is_nearest_in_scaled_signatures() -> None:
    mixed, rows = MixedDomains(4), side_by_side(512) * np.linspace(0.1, 10, 9)
    assert mixed(rows)
    scale = rows.std(axis=0)
    np.testing.assert_allclose(mixed.scale, scale, rtol=1e-5)
    expected = [
        min(range(4), key=lambda group: sum((row / scale - mixed.centres[group].numpy()) ** 2)) for row in rows[:50]
    ]
    assert mixed.group_of(torch.from_numpy(rows[:50])).tolist() == expected
    assert len(set(expected)) == 4


def test_groups_stay_as_they_are_while_it_is_on() -> None:
    mixed = MixedDomains(4)
    assert mixed(side_by_side(512))
    before = mixed.centres.clone()
    assert not mixed(side_by_side(512, seed=5))
    assert mixed.on
    assert mixed.due == 2048
    assert torch.equal(mixed.centres, before)
    mixed.restart()
    assert (mixed.on, mixed.since, mixed.due, len(mixed.latest)) == (False, 0, 512, 0)


def test_without_groups_it_never_turns_on() -> None:
    mixed = MixedDomains(0)
    assert not mixed(side_by_side(600))
    assert len(mixed.latest) == 0


def test_signatures_that_are_not_finite_are_ignored() -> None:
    mixed, rows = MixedDomains(4), side_by_side(600)
    rows[::10] = np.nan
    assert mixed(rows)
    assert mixed.centres.isfinite().all()


def test_equal_signatures_are_one_domain() -> None:
    mixed = MixedDomains(4)
    assert not mixed(np.zeros((512, 9)))


def test_a_state_goes_on() -> None:
    mixed, other = MixedDomains(4), MixedDomains(4)
    rows = side_by_side(512)
    mixed(rows[:300])
    state = copy.deepcopy(mixed.state_dict())
    other.load_state_dict(state)
    assert mixed(rows[300:])
    assert other(rows[300:])
    assert torch.equal(mixed.centres, other.centres)
    third = MixedDomains(4)
    third.load_state_dict(mixed.state_dict())
    assert (third.on, third.since, third.due) == (True, 512, 1024)
    assert torch.equal(third.group_of(torch.from_numpy(rows)), mixed.group_of(torch.from_numpy(rows)))
    before = mixed.centres.clone()
    assert torch.equal(mixed.bfloat16().centres, before)


def test_a_state_of_other_signatures_is_refused() -> None:
    mixed = MixedDomains(4)
    with pytest.raises(BadState, match=r"signatures of shape \(5, 8\), expected N×9"):
        mixed.set_extra_state({**mixed.get_extra_state(), "latest": torch.zeros(5, 8)})
