from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.report.axes import Plot, Scale, Span, empty, room_below, spread, tag, text, ticks


def plot(width: int) -> Plot:
    return Plot(Scale(0, 10, 0, width), Scale(0, 1, 100, 0), width, 130)


def spans(count: int, name: str = "brightness") -> list[Span]:
    return [Span(10 * i / count, 10 * (i + 1) / count, name) for i in range(count)]


def test_names_lie_flat_turn_or_go() -> None:
    wide = plot(600)
    assert "rotate" not in wide.names(spans(5))
    assert wide.names(spans(20)).count("rotate(-45") == 20
    assert wide.names(spans(200)) == ""
    assert room_below(spans(20), wide.x) > room_below(spans(5), wide.x) == room_below(spans(200), wide.x)


def test_borders_stand_between_spans_only() -> None:
    assert plot(600).borders(spans(5)).count("<line") == 4
    assert plot(600).borders([]) == ""


def test_a_figure_says_what_it_is() -> None:
    root = ElementTree.fromstring(plot(600).svg("a < b"))
    assert (root.get("role"), root.get("aria-label")) == ("img", "a < b")
    assert root.get("viewBox") == "0 0 600 130"


def test_nothing_to_draw_is_said() -> None:
    assert "Nothing was measured." in empty("title", 300)


def test_text_and_attributes_are_escaped() -> None:
    element = ElementTree.fromstring(text("<b>&", 1, 2, data_x='"<'))
    assert element.text == "<b>&"
    assert element.attrib == {"x": "1", "y": "2", "data-x": '"<'}


def test_attributes_without_a_value_are_left_out() -> None:
    assert tag("g", "x", fill=None, stroke_width=1.0) == '<g stroke-width="1">x</g>'


def test_scale_maps_ends_and_a_single_value() -> None:
    scale = Scale(10, 20, 100, 0)
    assert [scale(v) for v in (10, 15, 20)] == [100, 50, 0]
    assert Scale(5, 5, 0, 100)(5) == 50


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
@settings(max_examples=60)
def test_ticks_cover_the_range_evenly(low: float, span: float) -> None:
    high = low + span
    found = ticks(low, high)
    slack = 1e-6 * max(1, abs(low), abs(high))
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 9
    steps = {round(b - a, 6) for a, b in pairwise(found)}
    assert max(steps) - min(steps) < slack


def test_ticks_of_a_single_value() -> None:
    assert len(ticks(0, 0)) >= 2
    assert len(ticks(7.3, 7.3)) >= 2


@given(st.lists(st.floats(0, 100), max_size=8))
@settings(max_examples=60)
def test_spread_keeps_distance_and_order(places: list[float]) -> None:
    moved = spread(places, 10, 0, 100)
    assert all(b - a >= 10 - 1e-6 for a, b in pairwise(sorted(moved)))
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in moved)
    assert all(moved[i] < moved[j] for i, a in enumerate(places) for j, b in enumerate(places) if a < b)
