import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.data.datasets import ArrayImages
from resitta.data.orders import WithinSlot, dirichlet, label_sorted, shuffled
from resitta.data.streams import continual
from resitta.errors import BadSetting


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


def literal_ptta(labels: list[int], rng: np.random.Generator, delta: float, within_slot: str) -> list[int]:
    """The protocol sample by sample: as many time slots as classes, class c spread over them by π_c ~ Dir(δ, ..., δ).

    Of the n samples of a class, in the order of the data, sample number i (from 0) comes in the first slot k that is
    not full yet: the slots up to k hold ⌊n (π_c1 + ... + π_ck)⌋ of them, the last slot takes what is left.
    """
    classes = sorted(set(labels))
    pi = [rng.dirichlet([delta] * len(classes)).tolist() for _ in classes]
    slots: list[list[list[int]]] = [[[] for _ in classes] for _ in classes]
    for c, shares in zip(range(len(classes)), pi, strict=True):
        own = [index for index, label in enumerate(labels) if label == classes[c]]
        for i, index in enumerate(own):
            slot, full = 0, shares[0]
            while slot < len(classes) - 1 and i >= math.floor(full * len(own)):
                slot += 1
                full += shares[slot]
            slots[slot][c].append(index)
    order: list[int] = []
    for blocks in slots:
        if within_slot == "blocks":
            order += [index for c in rng.permutation(len(classes)) for index in blocks[c]]
        else:
            together = [index for block in blocks for index in block]
            order += [together[i] for i in rng.permutation(len(together))]
    return order


@pytest.mark.parametrize("within_slot", ["blocks", "shuffled"])
@pytest.mark.parametrize("delta", [0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_is_that_of_the_protocol_written_out(seed: int, delta: float, within_slot: WithinSlot) -> None:
    labels = np.random.default_rng(seed + 100).choice([0, 2, 3, 7, 9], 157)  # uneven, with classes that never come
    order = dirichlet(labels, np.random.default_rng(seed), delta=delta, within_slot=within_slot)
    assert order.tolist() == literal_ptta(labels.tolist(), np.random.default_rng(seed), delta, within_slot)


def test_the_domains_of_a_stream_are_ordered_one_after_the_other_from_one_generator() -> None:
    labels = [np.random.default_rng(number).integers(0, 4, 40 + number) for number in range(3)]
    sets = [ArrayImages(np.zeros((len(some), 4, 4, 3), np.uint8), some, classes=4) for some in labels]
    stream = continual(["a", "b", "c"], sets, dirichlet, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    assert stream.index.tolist() == [i for some in labels for i in literal_ptta(some.tolist(), rng, 0.1, "blocks")]
    assert stream.domain.tolist() == [domain for domain, some in enumerate(labels) for _ in some]
