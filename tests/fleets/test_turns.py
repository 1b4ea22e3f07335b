"""Turns: the most drifted stream first, and none starves."""

from hypothesis import given
from hypothesis import strategies as st

from resitta.fleets.turns import Turns


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=60), st.lists(st.floats(0, 5), min_size=10, max_size=10)
)
def test_none_starves_whoever_joins(arrivals: list[list[int]], drifts: list[float]) -> None:
    turns, drift = Turns(), dict(zip("abcdefghij", drifts, strict=True))
    deadlines: dict[str, int] = {}
    for clock, arriving in enumerate(arrivals):
        for number in arriving:
            name = "abcdefghij"[number]
            deadlines.setdefault(name, clock + 2 * (len(turns) + 1))
            turns.join(name)
        if len(turns):
            del deadlines[turns.take(drift.__getitem__)]
        assert all(clock < deadline for deadline in deadlines.values())
    assert set(deadlines) == set(turns._due)


def test_the_most_drifted_takes_every_other_turn() -> None:
    turns = Turns()
    for name in "abcdef":
        turns.join(name)
    order = [turns.take("abcdef".index) for _ in range(6)]
    assert order == ["f", "a", "e", "b", "d", "c"]


def test_a_stream_is_due_once_and_may_leave() -> None:
    turns = Turns()
    for name in "aab":
        turns.join(name)
    turns.leave("a")
    turns.leave("unknown")
    assert len(turns) == 1
    assert turns.take(lambda name: 0.0) == "b"
