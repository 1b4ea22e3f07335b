import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from resitta.report.axes import Span
from resitta.report.figures import NARROW, WIDE, Band, Series, bars, lines

SVG = "{http://www.w3.org/2000/svg}"
NAN = math.nan


def paths(svg: str) -> dict[str, str]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}path")
    return {path.get("data-label", ""): path.get("d", "") for path in found if path.get("data-label")}


def points(d: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+),([-\d.]+)", d)]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_values_can_be_read_back_from_the_pixels(width: int) -> None:
    values = (10.0, 55.5, 99.0)
    svg = lines([Series("a", (0, 1, 2), values), Series("b", (0, 1, 2), (1, 2, 3))], title="t", width=width)
    bottom, low, top, high = map(float, ElementTree.fromstring(svg).get("data-y", "").split())
    read = [low + (y - bottom) / (top - bottom) * (high - low) for _, y in points(paths(svg)["a"])]
    assert read == pytest.approx(values, abs=0.1)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_bands_stand_between_the_legend_and_the_lines(width: int) -> None:
    series = [Series(name, (0, 10), (1.0, 2.0)) for name in ("one", "two")]
    pieces = [(Span(0, 6, "<long>"), "red"), (Span(6, 6.1, "narrow"), "blue"), (Span(6.1, 10, "last"), "red")]
    bands = [Band("first", pieces, named=True), Band("second", pieces)]
    svg = lines(series, title="t", y_label="%", spans=[Span(0, 10, "all")], bands=bands, width=width)
    root = ElementTree.fromstring(svg)
    drawn = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") in ("red", "blue")]
    assert [rect[0].text for rect in drawn[:3]] == ["<long>, 6", "narrow, 0.1", "last, 3.9"]
    top = float(root.get("data-y", "").split()[2])
    legend = [float(t.get("y", "")) for t in root.iter(f"{SVG}text") if t.get("class") == "tick" and t.text == "one"]
    ends = [(float(rect.get("y", "")), float(rect.get("y", "")) + float(rect.get("height", ""))) for rect in drawn]
    assert max(ends)[1] < top
    assert min(ends)[0] > (max(legend) if width == NARROW else 0)
    assert ends[0][1] < ends[3][0], "one band below the other"
    left, right = (float(rect.get("x", "")) for rect in drawn[:2])
    axis = points(paths(svg)["one"])
    assert left == axis[0][0], "they share the axis of the lines"
    assert right - left == pytest.approx(0.6 * (axis[1][0] - axis[0][0]), abs=0.2)
    names = [t.text for t in root.iter(f"{SVG}text")]
    assert names.count("<long>") == 1
    assert "narrow" not in names, "there is no room for it"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_everything_lies_inside(width: int) -> None:
    series = [Series(f"method {i}", tuple(range(50)), tuple((i * j) % 37 for j in range(50))) for i in range(1, 9)]
    spans = [Span(5 * i, 5 * i + 5, "brightness") for i in range(10)]
    svg = lines(series, title="t", y_label="error %", spans=spans, width=width)
    root = ElementTree.fromstring(svg)
    height = float(root.get("height", "0"))
    for x, y in (point for d in paths(svg).values() for point in points(d)):
        assert 0 <= x <= width
        assert 0 <= y <= height
    for label in root.iter(f"{SVG}text"):
        assert 0 <= float(label.get("x", "-1")) <= width
        assert 0 <= float(label.get("y", "-1")) <= height


def test_nan_leaves_a_gap() -> None:
    svg = lines([Series("a", (0, 1, 2, 3, 4), (1.0, 2.0, NAN, 3.0, NAN))], title="t")
    assert re.sub(r"[-\d.,]+", "", paths(svg)["a"]) == "MhLMh"


def test_one_point_shows_as_a_dot() -> None:
    svg = lines([Series("a", (5,), (1.0,))], title="t")
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}circle"))) == 1


@pytest.mark.parametrize("series", [[], [Series("a", (), ())], [Series("a", (1, 2), (NAN, math.inf))]])
def test_nothing_to_draw(series: list[Series]) -> None:
    assert "Nothing was measured." in lines(series, title="t")


def test_empty_series_are_left_out_of_the_legend() -> None:
    series = [Series("a", (1, 2), (1, 2)), Series("b", (1, 2), (2, 1)), Series("gone", (), ())]
    assert "gone" not in lines(series, title="t", width=NARROW)


def test_wide_figures_name_lines_at_their_ends_without_overlap() -> None:
    series = [Series(name, (0, 1), (1.0, 50.0 + i / 10)) for i, name in enumerate("abcdef")]
    root = ElementTree.fromstring(lines(series, title="t"))
    ends = sorted(float(text.get("y", "0")) for text in root.iter(f"{SVG}text") if text.text in set("abcdef"))
    assert len(ends) == 6
    assert min(b - a for a, b in pairwise(ends)) >= 12


def test_flat_values_away_from_zero_are_not_zoomed_into() -> None:
    svg = lines([Series("a", (0, 1), (22.2, 22.4))], title="t", from_zero=False)
    _, low, _, high = map(float, ElementTree.fromstring(svg).get("data-y", "").split())
    assert high - low >= 2


def test_bars_are_as_high_as_their_values() -> None:
    svg = bars([4, 0, NAN, 2], labels=list("abcd"), title="t")
    heights = [float(rect.get("height", "-1")) for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect")]
    assert heights[0] == pytest.approx(2 * heights[3])
    assert heights[1] == heights[2] == 0
    assert "Nothing was measured." in bars([], labels=[], title="t")
    assert "<svg" in bars([0, 0], labels=["a", "b"], title="t")


def test_names_are_escaped() -> None:
    series = [Series("<script>", (0, 1), (0, 1)), Series("b", (0, 1), (0, 1))]
    for width in (WIDE, NARROW):
        svg = lines(series, title="<t>", spans=[Span(0, 1, "<s>")], width=width)
        assert "<script>" not in svg
        assert "<s>" not in svg
        ElementTree.fromstring(svg)
    assert "<b>" not in bars([1], labels=["<b>"], title="t")
