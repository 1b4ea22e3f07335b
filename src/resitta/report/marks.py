"""Marks of a time axis: what happened, as small shapes above a figure, and how often, as a strip below it.

A shape tells what happened without its colour; the page's style sheet adds one by the class of the mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resitta.report.axes import LETTER, Plot, spread, tag, text

ROOM = 16.0
"""The height of the row of shapes, in pixels."""
APART = 11.0
"""Marks of one kind that are closer become one; shapes of several kinds are moved apart to this."""
STRIP = 5.0
SHAPES = {
    "domain": "M0,-5L5,0L0,5L-5,0Z",
    "guard": "M0,-5L5.5,4.5H-5.5Z",
    "failure": "M-4.5,-4.5L4.5,4.5M4.5,-4.5L-4.5,4.5",
    "pause": "M-2.5,-4.5V4.5M2.5,-4.5V4.5",
    "resume": "M-4,-5L5,0L-4,5Z",
    "rollback": "M5,0H-4M-0.5,-4L-4.5,0L-0.5,4",
    "reset": "M-4.5,-4.5H4.5V4.5H-4.5Z",
    "control": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
}
"""The outline of each kind, around its centre."""


@dataclass(frozen=True)
class Mark:
    """Something that happened at a place of the axis; its kind is one of `SHAPES`."""

    x: float
    kind: str
    name: str


def draw_marks(plot: Plot, marks: Sequence[Mark]) -> str:
    """Draw the marks inside the axis: a faint line at each place, and its shape above the plot.

    >>> from resitta.report.axes import Scale
    >>> plot = Plot(Scale(-60, 0, 0, 300), Scale(0, 1, 100, 20), 300, 120)
    >>> drawn = draw_marks(plot, [Mark(-30, "pause", "learning paused"), Mark(-29, "pause", "again")])
    >>> drawn.count("<path"), "again (and 1 more)" in drawn
    (1, True)
    """
    inside = (mark for mark in marks if plot.x.low <= mark.x <= plot.x.high)
    shown = merged(sorted(inside, key=lambda mark: mark.x), plot)
    places = spread([plot.x(mark.x) for mark, _ in shown], APART, plot.x.start, plot.x.stop)
    return "".join(_mark(plot, mark, more, place) for (mark, more), place in zip(shown, places, strict=True))


def merged(marks: Sequence[Mark], plot: Plot) -> list[tuple[Mark, int]]:
    """The last of several marks of one kind that are too close to tell apart, and how many others it stands for."""
    found: list[tuple[Mark, int]] = []
    for mark in marks:
        near = next((i for i, (old, _) in enumerate(found) if old.kind == mark.kind and _close(plot, old, mark)), None)
        more = 0 if near is None else found.pop(near)[1] + 1
        found.append((mark, more))
    return found


def _close(plot: Plot, one: Mark, other: Mark) -> bool:
    return abs(plot.x(one.x) - plot.x(other.x)) < APART


def _mark(plot: Plot, mark: Mark, more: int, place: float) -> str:
    x, name = plot.x(mark.x), f"{mark.name} (and {more} more)" if more else mark.name
    line = tag("line", x1=x, x2=x, y1=plot.y.stop - 3, y2=plot.y.start, stroke_dasharray="2 3", stroke_opacity=".6")
    parts = line, shape(mark.kind, place, plot.y.stop - ROOM / 2 - 1)
    return tag("g", *parts, class_=f"mark {mark.kind}", stroke="currentColor", data_x=x, data_name=name)


def shape(kind: str, x: float, y: float) -> str:
    """Draw the shape of a kind around a place."""
    look = {"stroke_width": 1.6, "stroke_linejoin": "round", "stroke_linecap": "round"}
    return tag("path", d=SHAPES[kind], transform=f"translate({x:.1f} {y:.1f})", **look)


def draw_counts(plot: Plot, counts: Sequence[tuple[float, float, float]]) -> str:
    """Draw how often something happened from `start` to `stop`: the more often, the darker the strip below the axis."""
    inside = [(start, stop, count) for start, stop, count in counts if start >= plot.x.low and count > 0]
    most = max((count for *_, count in inside), default=1)
    return "".join(
        tag(
            "rect",
            x=plot.x(start),
            width=max(1.0, plot.x(min(stop, plot.x.high)) - plot.x(start) - 0.5),
            y=plot.y.start + 2,
            height=STRIP,
            fill_opacity=round(0.25 + 0.65 * count / most, 2),
            class_="count",
        )
        for start, stop, count in inside
    )


def legend(kinds: Mapping[str, str], width: int) -> str:
    """Draw each shape with its meaning, in as many rows as they need.

    >>> legend({"pause": "learning paused", "guard": "guard"}, 100).count("<text")
    2
    """
    parts, x, y = [], 8.0, 10.0
    for kind, meaning in kinds.items():
        length = 30 + len(meaning) * LETTER
        if x > 8 and x + length > width:
            x, y = 8.0, y + 20
        drawn = tag("g", shape(kind, x, y), class_=f"mark {kind}", stroke="currentColor")
        parts.append(drawn + text(meaning, x + 12, y + 4, class_="tick"))
        x += length
    size = {"viewBox": f"0 0 {width} {y + 12:.0f}", "width": width, "height": round(y + 12), "class_": "legend"}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", font_size=12, fill="currentColor", **size)
