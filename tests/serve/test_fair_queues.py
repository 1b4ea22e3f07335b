import pytest

from resitta.serve.fair_queues import Queues


def filled(**counts: int) -> Queues[str]:
    queues: Queues[str] = Queues()
    for client, count in counts.items():
        for number in range(count):
            assert queues.add(client, f"{client}{number}")
    return queues


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queues = filled(a=5, b=2, c=1)
    assert queues.take(4) == ["a0", "b0", "c0", "a1"]
    assert queues.take(9) == ["b1", "a2", "a3", "a4"]
    assert len(queues) == 0
    assert queues.take(1) == []


def test_the_next_turn_goes_on_where_the_last_one_stopped() -> None:
    queues = filled(a=3, b=3)
    assert [queues.take(1) for _ in range(4)] == [["a0"], ["b0"], ["a1"], ["b1"]]


def test_in_a_full_queue_the_client_with_the_most_loses_its_newest() -> None:
    queues = filled(flood=6, light=1)
    assert queues.add("light", "light1", instead=True)
    assert queues.add("new", "new0", instead=True)
    assert not queues.add("flood", "more", instead=True)
    assert len(queues) == 7
    assert queues.take(7) == ["flood0", "light0", "new0", "flood1", "light1", "flood2", "flood3"]


@pytest.mark.parametrize("client", ["a", "b"])
def test_equals_do_not_take_from_each_other(client: str) -> None:
    assert not filled(a=2, b=2).add(client, "x", instead=True)


def test_nothing_can_be_replaced_in_an_empty_queue() -> None:
    assert not Queues[str]().add("a", "x", instead=True)


def test_a_cleared_queue_is_empty() -> None:
    queues = filled(a=2, b=1)
    queues.clear()
    assert len(queues) == 0
    assert queues.take(3) == []
