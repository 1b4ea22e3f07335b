"""As how many samples the statistics of a domain count, against the formulas."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.norm.domain_counts import HORIZON, DomainCounts, class_weights


def total_weight(counts: list[int], quota: float, ceiling: float) -> float:
    """1/W = (1/P - 1/K) / quota + 1 / min(N, ceiling), with 1/P = Σ (n/N)²."""
    n = sum(counts)
    alike = sum((count / n) ** 2 for count in counts)
    return 1 / (max(0.0, alike - 1 / len(counts)) / quota + 1 / min(n, ceiling))


@given(
    st.lists(st.integers(0, 500), min_size=2, max_size=12).filter(any),
    st.floats(0.5, 20),
    st.floats(1, 200),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=100)
def test_weights_of_classes_by_the_formula(counts: list[int], quota: float, ceiling: float, beyond: int) -> None:
    """Rows beyond the classes have no samples and make no difference."""
    rows = torch.tensor([*counts, *[0] * beyond], dtype=torch.float64)
    found = class_weights(rows, classes=len(counts), quota=quota, ceiling=ceiling)
    shares = [min(count, quota) for count in counts]
    total = total_weight(counts, quota, ceiling)
    expected = [total * share / sum(shares) for share in shares]
    torch.testing.assert_close(found, torch.tensor([*expected, *[0.0] * beyond], dtype=torch.float64))


def test_classes_without_samples_weigh_nothing() -> None:
    assert class_weights(torch.zeros(4), classes=4, quota=4.0, ceiling=96.0).tolist() == [0] * 4


def counts_of(rows: int = 3) -> DomainCounts:
    counts = DomainCounts(rows, classes=rows, quota=4.0, ceiling=96.0, noise=0.8)
    counts.begin(64.0)
    return counts


def test_samples_are_counted_in_their_rows_and_those_left_out_are_not() -> None:
    counts = counts_of()
    batch = counts.add(torch.tensor([0, 2, 2, 1]), torch.tensor([True, True, True, False]))
    assert batch.assignment.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert counts.counts.tolist() == [1, 0, 2]
    assert (float(batch.fade), float(batch.strength), batch.noise, batch.groups) == (1, 64, 0.8, None)
    torch.testing.assert_close(batch.weights, class_weights(counts.counts, classes=3, quota=4.0, ceiling=96.0))
    groups = torch.tensor([1, 1])
    grouped = counts.add(groups, torch.tensor([True, True]), by_group=True)
    assert grouped.weights.tolist() == counts.counts.tolist() == [1, 2, 2]
    assert grouped.groups is groups
    counts.begin(256.0)
    assert (counts.counts.tolist(), float(counts.strength)) == ([0, 0, 0], 256)


def test_many_samples_fade_to_the_horizon() -> None:
    counts, all_kept = counts_of(), torch.ones(64, dtype=torch.bool)
    fades = [float(counts.add(torch.full((64,), 1), all_kept).fade) for _ in range(HORIZON // 64 + 20)]
    assert fades[: HORIZON // 64 + 1] == [1.0] * (HORIZON // 64 + 1)
    assert all(0.96 < fade < 1 for fade in fades[HORIZON // 64 + 1 :])
    assert float(counts.counts[1]) == HORIZON + 64
    for _ in range(100):  # a class that is not seen any more fades away
        counts.add(torch.zeros(64, dtype=torch.int64), all_kept)
    assert counts.counts[1] < 0.1 * HORIZON
    assert abs(float(counts.counts.sum()) - HORIZON - 64) < 1


def test_counts_stay_exact_in_models_of_half_precision() -> None:
    counts = counts_of().bfloat16()
    for _ in range(400):
        counts.add(torch.tensor([0]), torch.tensor([True]))
    assert counts.counts.tolist() == [400, 0, 0]
