from xml.etree import ElementTree

from resitta.report.axes import Plot, Span, empty, room_below
from resitta.report.svg import Scale

SVG = "{http://www.w3.org/2000/svg}"


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
    assert (root.get("role"), root.get("aria-label"), root.findtext(f"{SVG}title")) == ("img", "a < b", "a < b")
    assert root.get("viewBox") == "0 0 600 130"


def test_nothing_to_draw_is_said() -> None:
    assert "Nothing was measured." in empty("title", 300)
