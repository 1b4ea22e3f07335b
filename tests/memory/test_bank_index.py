from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.memory.bank_index import SLACK, BankIndex, ClassSamples, LazyHeap, valid


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300))
def test_a_lazy_heap_is_a_heap_of_what_is_left(steps: list[tuple[int, bool]]) -> None:
    current: dict[int, int] = {}
    heap, left = LazyHeap(current), []
    for key, (number, leaves) in enumerate(steps):
        current[key] = version = key % 3
        heap.push((number, version, key))
        left.append((number, version, key))
        if leaves:
            gone = min(left)
            left.remove(gone)
            current[gone[-1]] += 1
        assert heap.top() == (min(left) if left else None)


def test_levels_follow_the_counts() -> None:
    index = BankIndex(10)
    for slot, (label, entropy) in enumerate([(0, 0.5), (1, 0.9), (1, 0.2)]):
        index.put(slot, label, birth=slot + 1, entropy=entropy)
    assert index.dominant().oldest() == (2, 1)
    found = index.dominant().outlook(mature_by=2)
    assert (found.highest_entropy, found.highest) == (0.9, 1)
    assert (found.overconfident, found.next_mature) == (None, 3), "the surest of class 1 was born at 3"
    assert index.dominant().outlook(mature_by=3).overconfident == 2
    index.remove(1)
    assert index.dominant().oldest() == (1, 0), "now both classes have one sample"
    found = index.dominant().outlook(mature_by=0)
    assert (found.highest_entropy, found.highest) == (0.5, 0)


def test_a_class_that_came_and_went_does_not_count() -> None:
    index = BankIndex(10)
    for birth, label in enumerate([0, 0, 1, 1, 2], start=1):
        index.put(slot=birth, label=label, birth=birth, entropy=0.5 + label)
    assert index.dominant().oldest() == (1, 1), "classes 0 and 1 were compared"
    index.remove(slot=3)
    index.put(slot=6, label=2, birth=6, entropy=2.5)
    index.remove(slot=5)
    assert index.dominant().oldest() == (1, 1), "class 0 alone has two samples"
    assert index.dominant().outlook(mature_by=0).highest_entropy == 0.5
    index.remove(slot=5)
    index.put(slot=5, label=2, birth=7, entropy=2.5)
    assert index.dominant().outlook(mature_by=0).highest_entropy == 2.5, "class 2 had one sample, now it has two again"


def test_a_class_forgets_who_has_gone_even_if_nobody_asks() -> None:
    births = [-1]
    samples = ClassSamples(births)
    for birth in range(10 * SLACK):
        births[0] = birth
        samples.add((0.5, birth, 0))
    assert len(samples._by_age) <= SLACK + 2
    assert samples.oldest() == (0.5, 10 * SLACK - 1, 0)


def test_a_sample_enters_the_heaps_once() -> None:
    births = [0, 1, 2, -1]
    samples = ClassSamples(births)
    for slot in range(3):
        samples.add((0.1 * slot, slot, slot))
    samples.extremes()
    for birth in range(3, 3 + SLACK):  # one slot changes hands until the samples that have gone are forgotten
        births[3] = birth
        samples.add((0.5, birth, 3))
        if birth in (3, 2 + SLACK):
            samples.extremes()
    for heap in (samples._lowest, samples._highest):
        entries = [*heap._entries, *heap._fresh]
        assert len(entries) == len(set(entries))
        assert len(valid(entries, births)) == 4
