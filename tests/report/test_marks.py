from xml.etree import ElementTree

from resitta.report.axes import Plot, Scale
from resitta.report.figures import Series, lines
from resitta.report.marks import APART, Mark, draw_counts, draw_marks, legend

PLOT = Plot(Scale(-60, 0, 0, 300), Scale(0, 1, 100, 20), 300, 120)


def drawn(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(f"<svg>{svg}</svg>"))


def places(svg: str) -> list[float]:
    shapes = [path.get("transform", "") for path in ElementTree.fromstring(f"<svg>{svg}</svg>").iter("path")]
    return sorted(float(shape.removeprefix("translate(").split()[0]) for shape in shapes)


def test_marks_of_one_kind_join_and_others_move_apart() -> None:
    near = [Mark(-30, "pause", "paused"), Mark(-29.5, "resume", "resumed"), Mark(-29, "pause", "paused again")]
    found = drawn(draw_marks(PLOT, near))
    assert [mark.get("data-name") for mark in found] == ["resumed", "paused again (and 1 more)"]
    assert [float(mark.get("data-x", "")) for mark in found] == [152.5, 155], "the line stays where it happened"
    first, second = places(draw_marks(PLOT, near))
    assert second - first >= APART - 0.1


def test_marks_outside_the_axis_are_left_out() -> None:
    assert draw_marks(PLOT, [Mark(-61, "reset", "earlier"), Mark(1, "reset", "later")]) == ""


def test_the_more_often_the_darker() -> None:
    strip = drawn(draw_counts(PLOT, [(-70, -60, 9), (-20, -10, 1), (-10, 0, 4), (-5, 0, 0)]))
    opacities = [float(rect.get("fill-opacity", "")) for rect in strip]
    assert len(opacities) == 2
    assert opacities[0] < opacities[1]


def test_a_figure_has_room_for_marks_only_if_it_may_have_some() -> None:
    series = [Series("a", (-60, 0), (0.0, 1.0))]
    without, room = (lines(series, title="t", marks=marks) for marks in (None, list[Mark]()))
    heights = [float(ElementTree.fromstring(svg).get("height", "")) for svg in (without, room)]
    assert heights[1] - heights[0] == 16


def test_a_narrow_legend_has_more_rows() -> None:
    kinds = {"pause": "learning paused", "guard": "guard", "reset": "reset"}
    wide, narrow = (ElementTree.fromstring(legend(kinds, width)) for width in (600, 120))
    assert float(narrow.get("height", "")) > float(wide.get("height", ""))
    assert "".join(wide.itertext()) == "".join(kinds.values())
