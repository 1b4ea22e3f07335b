from tests.conftest import small_network, stream

import resitta
from resitta.serve.learning import contents, guard_counts


def test_the_memory_is_copied_the_youngest_first() -> None:
    adapter = resitta.adapt(small_network(), "resitta")
    given = stream(6)
    adapter(given)
    images, labels, ages, entropies = contents(adapter, 4)
    assert ages == [0, 1, 2, 3]
    assert (images[0] - given[-1]).abs().max() < 1e-6
    assert len(labels) == len(entropies) == 4
    assert contents(resitta.adapt(small_network(), "tent"), 4)[1] == []


def test_guards_are_counted_by_reason() -> None:
    assert guard_counts(resitta.adapt(small_network(), "resitta")) == {}
    assert set(guard_counts(resitta.adapt(small_network(), "resitta", guard=True)).values()) == {0}
