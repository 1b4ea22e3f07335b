import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.components.bank_index import BankIndex, LazyHeap


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300))
def test_a_lazy_heap_is_a_heap_of_what_is_left(steps: list[tuple[int, bool]]) -> None:
    gone: set[int] = set()
    heap, present = LazyHeap(lambda entry: entry[1] in gone), []
    for identity, (value, leaves) in enumerate(steps):
        heap.push((value, identity))
        present.append((value, identity))
        if leaves:
            gone.add(heapq.nsmallest(1, (entry for entry in present if entry[1] not in gone))[0][1])
        left = [entry for entry in present if entry[1] not in gone]
        assert heap.top() == (min(left) if left else None)


def test_levels_follow_the_counts() -> None:
    index = BankIndex()
    for slot, (label, entropy) in enumerate([(0, 0.5), (1, 0.9), (1, 0.2)]):
        index.add(slot, label, birth=slot + 1, entropy=entropy)
    assert index.dominant().oldest() == (2, 1)
    found = index.dominant().outlook(mature_by=2)
    assert (found.highest_entropy, found.highest) == (0.9, 1)
    assert (found.overconfident, found.next_mature) == (None, 3), "the surest of class 1 was born at 3"
    assert index.dominant().outlook(mature_by=3).overconfident == 2
    index.remove(1, label=1)
    assert index.dominant().oldest() == (1, 0), "now both classes have one sample"
    found = index.dominant().outlook(mature_by=0)
    assert (found.highest_entropy, found.highest) == (0.5, 0)
