import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.errors import BadSetting
from resitta.streams.order import dirichlet, label_sorted, shuffled


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    delta=st.floats(0.01, 100),
    within_slot=st.sampled_from(["blocks", "shuffled"]),
    seed=st.integers(0, 9),
)
def test_every_order_brings_each_image_once(labels: list[int], delta: float, within_slot: str, seed: int) -> None:
    array, rng = np.array(labels), np.random.default_rng(seed)
    orders = [
        dirichlet(array, rng, delta=delta, within_slot=within_slot),  # type: ignore[arg-type]
        shuffled(array, rng),
        label_sorted(array),
    ]
    for order in orders:
        assert sorted(order.tolist()) == list(range(len(labels)))


def distinct_classes_per_batch(order: np.ndarray, labels: np.ndarray) -> float:
    batches = np.split(labels[order], range(64, len(labels), 64))
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


def test_blocks_and_shuffled_slots_have_the_correlation_the_protocol_names() -> None:
    labels = np.arange(10_000) % 10
    means = {}
    for within in ("blocks", "shuffled"):
        orders = [dirichlet(labels, np.random.default_rng(seed), within_slot=within) for seed in range(5)]
        means[within] = np.mean([distinct_classes_per_batch(order, labels) for order in orders])
    assert means["blocks"] == pytest.approx(1.3, abs=0.15)
    assert means["shuffled"] == pytest.approx(4.6, abs=0.9)


def test_a_seed_fixes_the_order() -> None:
    labels = np.arange(300) % 7
    one, two, other = (dirichlet(labels, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_delta_must_be_positive() -> None:
    with pytest.raises(BadSetting, match="delta must be > 0, found 0"):
        dirichlet(np.arange(4), np.random.default_rng(0), delta=0)
