from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.training.naive_change_points import NaiveChangePoints

from resitta.errors import BadState
from resitta.training.change_points import Change, ChangePoints

Floats = NDArray[np.float64]
BOUND = 2.4


def in_batches(rows: Floats, sizes: Sequence[int], changes: ChangePoints | None = None) -> list[tuple[int, Change]]:
    """The changes that are found in batches of these sizes, and the indices in the stream at which they begin."""
    changes, found, start, number = changes or ChangePoints(BOUND), [], 0, 0
    while start < len(rows):
        size = sizes[number % len(sizes)]
        change = changes(rows[start : start + size])
        found += [] if change is None else [(start + change.start, change)]
        start, number = start + size, number + 1
    return found


def domains(seed: int, lengths: Sequence[int], apart: float = 1.0) -> Floats:
    """Correlated signatures whose mean moves by about `apart` times three at each border, noisy by 0.2."""
    rng = np.random.default_rng(seed)
    mixing = 0.2 * (np.eye(9) + 0.3 * rng.normal(size=(9, 9)))
    return np.concatenate([rng.normal(size=(n, 9)) @ mixing + apart * rng.normal(size=9) for n in lengths])


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(70, 140), min_size=1, max_size=4),
    st.floats(0.05, 1.0),
    st.lists(st.integers(1, 16), min_size=1, max_size=5),
    st.sampled_from([0.0, 1.0, 8.0]),
)
@settings(deadline=None, max_examples=25)
def test_it_is_the_naive_detector_whatever_the_batches(
    seed: int, lengths: list[int], apart: float, sizes: list[int], drift: float
) -> None:
    rows = domains(seed, lengths, apart)
    rows = rows + np.linspace(0, drift, len(rows))[:, None]
    expected, found = NaiveChangePoints(BOUND).run(rows), in_batches(rows, sizes)
    assert [start for start, _ in found] == [start for start, *_ in expected]
    for (_, change), (_, left, lasted) in zip(found, expected, strict=True):
        np.testing.assert_allclose(change.left, left, rtol=1e-9, atol=1e-12)
        assert change.lasted == lasted


@pytest.mark.parametrize("size", [1, 7, 16, 64, 200])
@pytest.mark.parametrize("first", [320, 327, 331])
def test_changes_are_found_at_their_image_in_batches_of_any_size(size: int, first: int) -> None:
    rows = domains(3, [first, 250, 400], apart=1.5)
    assert [start for start, _ in in_batches(rows, [size])] == [first, first + 250]


@pytest.mark.parametrize("size", [1, 64, 200])
def test_a_block_with_fewer_than_four_new_images_may_begin_the_domain_twice(size: int) -> None:
    starts = [start for start, _ in in_batches(domains(3, [333, 250], apart=1.5), [size])]
    assert starts == ([332, 336] if size == 1 else [336])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("scale", [0.02, 0.2, 1.0])
def test_no_alarm_where_nothing_changes(seed: int, scale: float) -> None:
    rows = domains(seed, [1500], apart=5.0)
    assert in_batches(rows * scale / 0.2, [1, 7, 64, 200][seed % 4 :][:1]) == []


@pytest.mark.parametrize(("alone", "both", "found"), [(1.38, 0.69, 0), (1.42, 0.71, 1), (1.2, 0.98, 0), (1.2, 1.02, 1)])
def test_one_block_must_be_further_away_than_two(alone: float, both: float, found: int) -> None:
    """In units of the bound: the distance of the last block, and that of the mean of the last two."""
    changes = ChangePoints(BOUND)
    changes(domains(1, [320]))
    unit = np.arange(9.0) / changes.distance(np.arange(9.0), np.zeros(9))
    changes.last = np.tile(changes.mean + (2 * both - alone) * BOUND * unit, (16, 1))
    changes(np.tile(changes.mean + alone * BOUND * unit, (16, 1)))
    assert changes.found == found


def test_the_covariance_counts_as_64_images_in_the_next_domain() -> None:
    changes = ChangePoints(BOUND)
    changes(domains(1, [320]))
    before = changes.scatter / changes.mass
    changes(changes.mean + 9 + np.zeros((16, 9)))
    assert (changes.found, changes.mass) == (1, 64)
    np.testing.assert_allclose(changes.scatter / 64, before)


def test_variances_have_a_lower_bound_and_correlations_count_for_nine_tenths() -> None:
    changes = ChangePoints(BOUND)
    changes.scatter = np.zeros((9, 9))
    assert changes.distance(0.01 * np.eye(9)[4], np.zeros(9)) == pytest.approx(1)
    changes.scatter = changes.mass * np.ones((9, 9))
    expected = np.linalg.inv(0.9 * np.ones((9, 9)) + 0.1 * np.eye(9))[2, 2]
    assert changes.distance(np.eye(9)[2], np.zeros(9)) == pytest.approx(expected**0.5)


@pytest.mark.parametrize(("length", "least", "most"), [(100, 1, 3), (3000, 0, 0)])
def test_a_fast_ramp_is_a_change_and_a_slow_drift_is_not(length: int, least: int, most: int) -> None:
    """By 15 standard deviations in total. The covariance of a domain grows while its mean drifts slowly."""
    ramp = np.linspace(0, 1, length)[:, None] * np.ones(9)
    means = np.concatenate((np.zeros((400, 9)), ramp, np.ones((200, 9))))
    found = in_batches(np.random.default_rng(0).normal(0, 0.2, means.shape) + means, [64])
    assert least <= len(found) <= most
    assert all(400 <= start < 400 + length for start, _ in found)


def test_the_mean_of_a_domain_follows_the_last_two_thousand_images() -> None:
    rng, changes = np.random.default_rng(0), ChangePoints(float("inf"))
    for mean in np.repeat([0.0, 1.0], (200, 128)):
        changes(rng.normal(mean, 0.1, (32, 9)))
    assert changes.seen == 2048
    assert changes.mean.mean() == pytest.approx(1 - np.exp(-2), abs=0.01)  # over 4096 images, since after 2048 it fades
    assert changes.mass == 8192
    assert changes.found == 0


def test_frames_that_hardly_differ_need_a_visible_change() -> None:
    rng = np.random.default_rng(0)
    still = rng.normal(0, 1e-4, (640, 9))
    still[320:] += 0.005
    assert in_batches(still, [16]) == []
    still[320:] += 0.1
    assert [start for start, _ in in_batches(still, [16])] == [320]


def test_signatures_that_are_not_finite_are_ignored() -> None:
    rows = domains(0, [160])
    clean, spoiled = ChangePoints(BOUND), ChangePoints(BOUND)
    clean(rows)
    for batch in np.split(rows, 10):
        spoiled(np.concatenate((np.full((3, 9), np.nan), batch, np.full((1, 9), np.inf))))
    np.testing.assert_allclose(spoiled.mean, clean.mean)
    np.testing.assert_allclose(spoiled.scatter, clean.scatter)


def test_of_two_changes_in_a_batch_the_last_begins_and_the_first_ended_what_was_there() -> None:
    rows = domains(5, [160, 112, 96], apart=1.5)
    changes = ChangePoints(BOUND)
    assert changes(rows[:150]) is None
    change = changes(rows[150:])
    assert change is not None
    assert (change.start, changes.found) == (122, 2)
    np.testing.assert_allclose(change.left, rows[:144].mean(axis=0))
    assert change.lasted == 144


def test_a_state_continues_in_the_middle_of_a_block() -> None:
    rows = domains(2, [150, 170], apart=1.0)
    one, other = ChangePoints(BOUND), ChangePoints(BOUND)
    in_batches(rows[:158], [7], one)
    other.set_extra_state(one.get_extra_state())
    before = one.get_extra_state()
    found = [in_batches(rows[158:], [9], changes) for changes in (one, other)]
    assert [start for start, _ in found[0]] == [start for start, _ in found[1]] == [150 - 158]
    assert before["waiting"].shape == (158 % 16, 9)  # a state is a copy
    for name, value in one.get_extra_state().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(other.get_extra_state()[name]))


@pytest.mark.parametrize(("name", "shape"), [("waiting", (2, 8)), ("last", (16,)), ("mean", (8,)), ("scatter", (9, 8))])
def test_states_of_other_signatures_are_refused(name: str, shape: tuple[int, ...]) -> None:
    changes = ChangePoints(BOUND)
    with pytest.raises(BadState, match="the state holds signatures of shapes .* this method has 9 numbers in each"):
        changes.set_extra_state({**changes.get_extra_state(), name: torch.zeros(shape)})


@given(st.integers(0, 10**6), st.floats(0.05, 0.4), st.floats(0, 1))
@settings(deadline=None, max_examples=20)
def test_with_diverse_labels_it_is_the_naive_detector_with_a_lower_bound(
    seed: int, apart: float, diversity: float
) -> None:
    rows = domains(seed, [150, 100, 120], apart)
    naive, changes, found = NaiveChangePoints(BOUND), ChangePoints(BOUND), []
    for start in range(0, len(rows), 16):
        change = changes(rows[start : start + 16], diversity)
        found += [] if change is None else [start + change.start]
        naive.run(rows[start : start + 16], diversity)
    assert found == [start for start, *_ in naive.found]


def test_small_changes_are_found_where_labels_are_diverse() -> None:
    rows = domains(1, [320, 200], apart=0.0)
    rows[320:] += 0.2 * 0.6  # in each of nine numbers, of about that deviation
    found = [
        [change for part in np.split(rows, range(40, 520, 40)) if (change := changes(part, diversity))]
        for diversity in (0.0, 1.0)
        for changes in [ChangePoints(BOUND)]
    ]
    assert [len(each) for each in found] == [0, 1]
