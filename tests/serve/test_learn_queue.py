import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.serve.http_errors import Refused
from resitta.serve.learn_queue import Counters, Inbox


def balanced(counters: Counters) -> bool:
    others = counters.learned + counters.dropped + counters.skipped + counters.screened + counters.waiting
    return counters.offered == others


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["offer", "take", "empty", "pause", "resume", "record"]), st.integers(1, 9))))
def test_every_image_is_accounted_for_whatever_happens(events: list[tuple[str, int]]) -> None:
    inbox = Inbox(room=12, batch=5)
    for event, count in events:
        if event == "offer":
            clients = ["a", "b", "a", "c", "a", "a", "d", "b", "a"][:count]
            assert len(inbox.offer(torch.zeros(count, 1), torch.zeros(count, 2), clients)) == count
        elif event == "take" and (taken := inbox.take()) is not None:
            inbox.settle(learned=len(taken.images) - 1, screened=1)
        elif event == "empty":
            inbox.empty()
        elif event == "record":
            inbox.record(count)
        elif event in ("pause", "resume"):
            inbox.paused = event == "pause"
        assert balanced(inbox.counters)
        assert 0 <= inbox.counters.waiting <= 12


def test_images_come_out_in_their_order_each_once() -> None:
    inbox = Inbox(room=100, batch=4)
    for start in (0, 3, 5):
        numbers = torch.arange(start, start + (5 - start if start == 3 else 3)).view(-1, 1)
        inbox.offer(numbers, -numbers)
    found = []
    while (taken := inbox.take()) is not None:
        assert taken.logits is not None
        assert torch.equal(taken.logits, -taken.images)
        found += taken.images.flatten().tolist()
        inbox.settle(learned=len(taken.images))
    assert found == list(range(8))
    assert inbox.counters.learned == 8


def test_logits_come_out_only_if_all_images_of_a_batch_have_them() -> None:
    inbox = Inbox(room=9, batch=4)
    inbox.offer(torch.zeros(2, 1), torch.ones(2, 5))
    inbox.offer(torch.zeros(1, 1))
    taken = inbox.take()
    assert taken is not None
    assert taken.images.shape == (3, 1)
    assert taken.logits is None


def test_images_taken_still_need_room() -> None:
    inbox = Inbox(room=4, batch=4)
    inbox.offer(torch.zeros(4, 1), torch.zeros(4, 2))
    inbox.take()
    assert inbox.offer(torch.zeros(1, 1), torch.zeros(1, 2)) == [False]
    assert inbox.counters.dropped == 1


def test_a_whole_batch_or_a_task_wakes_the_writer() -> None:
    inbox = Inbox(room=8, batch=4)
    woken = threading.Event()

    def sleep() -> None:
        inbox.wait(30)
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    inbox.offer(torch.zeros(3, 1), torch.zeros(3, 2))
    assert not woken.wait(0.05)
    inbox.offer(torch.zeros(1, 1), torch.zeros(1, 2))
    assert woken.wait(5)
    thread.join()


def test_an_abandoned_task_is_not_done() -> None:
    inbox = Inbox(room=1, batch=1)
    future = inbox.ask(lambda: pytest.fail("nobody wants it"))
    future.cancel()
    for task in inbox.tasks():
        task()


def test_failures_of_tasks_go_to_whoever_asked() -> None:
    inbox = Inbox(room=1, batch=1)
    future = inbox.ask(lambda: 1 // 0)
    for task in inbox.tasks():
        task()
    assert isinstance(future.exception(), ZeroDivisionError)


def test_a_closed_inbox_takes_no_tasks() -> None:
    inbox = Inbox(room=1, batch=1)
    inbox.close()
    with pytest.raises(Refused, match="stopping"):
        inbox.ask(lambda: None)
