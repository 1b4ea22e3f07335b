from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from resitta.runtime.learn_queue import Counters, LearnQueue, Samples, joined


def single(clients: Iterable[str], images: Tensor | None = None) -> list[Samples]:
    """Samples that are queued one by one, with their negatives as logits."""
    names = list(clients)
    given = torch.zeros(len(names), 1) if images is None else images
    return [Samples(image, -image, name) for image, name in zip(torch.split(given, 1), names, strict=True)]


def numbers(batch: list[Samples]) -> list[int]:
    return [int(value) for samples in batch for value in samples.images.flatten()]


# --- the order --------------------------------------------------------------------------------------------------------


def filled(room: int, **counts: int) -> LearnQueue:
    """Ten and more belong to the first client, twenty and more to the second, and so on."""
    queue = LearnQueue(room=room, batch=4)
    for tens, (client, count) in enumerate(counts.items(), start=1):
        assert queue.offer([sample(client, 10 * tens + number) for number in range(count)]) == [True] * count
    return queue


def sample(client: str, number: int = 0) -> Samples:
    return Samples(torch.full((1, 1), number), None, client)


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queue = filled(8, a=5, b=2, c=1)
    assert [numbers(queue.take()) for _ in range(3)] == [[10, 20, 30, 11], [21, 12, 13, 14], []]
    assert len(queue) == 0


def test_the_next_batch_continues_with_the_next_client() -> None:
    queue = filled(6, a=3, b=3)
    queue.batch = 1
    assert [numbers(queue.take()) for _ in range(4)] == [[10], [20], [11], [21]]


def test_in_a_full_queue_the_client_with_the_most_loses_its_newest() -> None:
    queue = filled(7, flood=6, light=1)
    assert queue.offer([sample("light", 21), sample("new", 30), sample("flood", 16)]) == [True, True, False]
    assert len(queue) == 7
    queue.batch = 7
    assert numbers(queue.take()) == [10, 20, 30, 11, 21, 12, 13]
    assert (queue.counters.dropped, queue.counters.waiting) == (3, 7)


@pytest.mark.parametrize("client", ["a", "b"])
def test_equals_do_not_take_from_each_other(client: str) -> None:
    assert filled(4, a=2, b=2).offer([sample(client)]) == [False]


def test_an_empty_queue_takes_any_number_and_samples_stay_together() -> None:
    queue = LearnQueue(room=10, batch=10)
    sizes = [(100, ""), (1, ""), (101, "other")]
    assert queue.offer([Samples(torch.zeros(size, 1), None, client) for size, client in sizes]) == [True, False, False]
    assert [len(samples) for samples in queue.take()] == [100]


def test_a_batch_ends_where_samples_do_not_fit() -> None:
    queue = LearnQueue(room=99, batch=10)
    shapes = [(4, 3), (4, 3), (4, 3), (2, 5), (1, 5)]
    queue.offer([Samples(torch.zeros(shape), None) for shape in shapes])
    queue.offer([Samples(torch.zeros(1, 5, dtype=torch.float64), None)])
    batches = [queue.take() for _ in range(4)]
    assert [[len(samples) for samples in batch] for batch in batches] == [[4, 4], [4], [2, 1], [1]]


# --- the counters -----------------------------------------------------------------------------------------------------


def balanced(counters: Counters) -> bool:
    others = counters.learned + counters.dropped + counters.skipped + counters.screened + counters.waiting
    return counters.offered == others


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["offer", "take", "clear", "pause", "resume", "record"]), st.integers(1, 9))))
def test_every_sample_is_accounted_for_whatever_happens(events: list[tuple[str, int]]) -> None:
    queue = LearnQueue(room=12, batch=5)
    for event, count in events:
        if event == "offer":
            assert len(queue.offer(single("abacaadba"[:count]))) == count
        elif event == "take" and (batch := queue.take()):
            queue.settle(learned=len(batch) - 1, screened=1)
        elif event == "clear":
            queue.clear()
        elif event == "record":
            queue.record(count)
        elif event in ("pause", "resume"):
            queue.paused = event == "pause"
        assert balanced(queue.counters)
        assert 0 <= queue.counters.waiting == len(queue) <= 12
        assert queue.accepted - queue.finished == queue.counters.waiting


def test_samples_come_out_in_their_order_each_once() -> None:
    queue = LearnQueue(room=100, batch=4)
    for start, end in ((0, 3), (3, 5), (5, 8)):
        queue.offer(single("a" * (end - start), torch.arange(start, end).view(-1, 1)))
    found = []
    while batch := queue.take():
        images, logits = joined(batch)
        assert logits is not None
        assert torch.equal(logits, -images)
        found += images.flatten().tolist()
        queue.settle(learned=len(images))
    assert found == list(range(8))
    assert queue.counters.learned == queue.finished == 8


def test_logits_come_out_only_if_all_samples_of_a_batch_have_them() -> None:
    queue = LearnQueue(room=9, batch=4)
    queue.offer([*single("ab"), Samples(torch.zeros(1, 1), None)])
    images, logits = joined(queue.take())
    assert images.shape == (3, 1)
    assert logits is None


def test_samples_being_learned_from_wait_but_need_no_room() -> None:
    queue = LearnQueue(room=4, batch=4)
    queue.offer(single("aaaa"))
    queue.take()
    assert queue.offer(single("aaaaa")) == [True] * 4 + [False]
    assert (queue.counters.waiting, queue.counters.dropped) == (8, 1)


def test_a_closed_queue_drops() -> None:
    queue = LearnQueue(room=4, batch=4)
    queue.offer(single("aa"))
    queue.close()
    assert queue.offer(single("a")) == [False]
    assert queue.counters == Counters(offered=3, dropped=3)


# --- streams ----------------------------------------------------------------------------------------------------------


def of_stream(client: str, stream: str, number: int = 0) -> Samples:
    return Samples(torch.full((1, 1), number), None, client, stream=stream)


def test_each_batch_is_of_one_stream_and_clients_take_turns_before_their_streams_do() -> None:
    queue = LearnQueue(room=20, batch=2)
    queue.offer([of_stream("many", name) for name in "abcaaaa"] + [of_stream("one", "z") for _ in range(5)])
    taken = [[samples.stream for samples in queue.take()] for _ in range(8)]
    assert taken == [["a", "a"], ["z", "z"], ["b"], ["z", "z"], ["c"], ["z"], ["a", "a"], ["a"]]
    assert not len(queue)


def test_a_stream_that_floods_a_full_queue_takes_no_room_from_the_other_streams_of_its_client() -> None:
    queue = LearnQueue(room=6, batch=6)
    queue.offer([of_stream("gateway", "flood", number) for number in range(6)])
    offered = [of_stream("gateway", "calm"), of_stream("gateway", "flood"), of_stream("gateway", "calm")]
    assert queue.offer(offered) == [True, False, True]
    assert queue.waiting_by_stream() == {"flood": 4, "calm": 2}
    assert queue.offer([of_stream("other", "new") for _ in range(5)]) == [True] * 3 + [False] * 2
    assert sum(queue.waiting_by_stream().values()) == 6
    assert numbers(queue.take()) == [0], "the newest samples were replaced, the oldest are kept"


def test_the_samples_of_one_stream_are_skipped_alone() -> None:
    queue = LearnQueue(room=9, batch=9)
    queue.offer([of_stream("a", "x"), of_stream("a", "y"), of_stream("a", "x"), of_stream("b", "x")])
    queue.clear("a", "x")
    queue.clear("a", "unknown")
    queue.clear("unknown", "x")
    assert (queue.counters.skipped, queue.counters.waiting, len(queue)) == (2, 2, 2)
    queue.clear("b", "x")
    assert [samples.stream for samples in queue.take()] == ["y"]
    assert len(queue) == 0
