"""The frame of a figure: its area, its axes, and the named spans under it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from resitta.report.svg import Scale, tag, text

LINE, LETTER = 15.0, 6.6  # the height of a line of text and the usual width of a letter, in pixels
_GRID = {"stroke": "currentColor", "stroke_opacity": ".14"}
_BORDER = {"stroke": "currentColor", "stroke_opacity": ".35", "stroke_dasharray": "2 3"}


@dataclass(frozen=True)
class Span:
    """A named part of the horizontal axis, such as the time a domain lasts."""

    start: float
    stop: float
    name: str


@dataclass(frozen=True)
class Plot:
    """The area inside the axes; `x` and `y` turn values into pixels."""

    x: Scale
    y: Scale
    width: int
    height: float

    def svg(self, title: str, *parts: str) -> str:
        """The whole figure. The script of the page reads values back from the pixels of the vertical axis."""
        y_axis = f"{self.y.start:.1f} {self.y.low:g} {self.y.stop:.1f} {self.y.high:g}"
        size = {"viewBox": f"0 0 {self.width} {self.height:.0f}", "width": self.width, "height": round(self.height)}
        role = {"class_": "figure", "role": "img", "aria_label": title, "data_y": y_axis}
        look = {"font_family": "system-ui, sans-serif", "font_size": 12, "fill": "currentColor"}
        head = {"xmlns": "http://www.w3.org/2000/svg", **size, **role, **look}
        return tag("svg", tag("title", escape(title)), *parts, **head)

    def y_axis(self, ticks: Sequence[float], label: str) -> str:
        """Faint horizontal lines with their values, and above them what they measure."""
        left, right = self.x.start, self.x.stop
        grid = [tag("line", x1=left, x2=right, y1=self.y(v), y2=self.y(v), **_GRID) for v in ticks]
        values = [text(f"{v:g}", left - 8, self.y(v) + 4, class_="tick", text_anchor="end") for v in ticks]
        return "".join(grid + values) + text(label, 0, self.y.stop - 14, class_="label")

    def x_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> str:
        """Values as they are to be printed, and below them what they measure."""
        below = self.y.start + 20
        values = [text(value, self.x(place), below, class_="tick", text_anchor="middle") for place, value in ticks]
        return "".join(values) + text(label, self.x.stop, below + 20, class_="label", text_anchor="end")

    def borders(self, spans: Sequence[Span]) -> str:
        """Faint vertical lines between the spans."""
        edges = [self.x(span.start) for span in spans[1:]]
        return "".join(tag("line", x1=x, x2=x, y1=self.y.stop, y2=self.y.start, **_BORDER) for x in edges)

    def names(self, spans: Sequence[Span]) -> str:
        """The names of the spans under the axis, turned when they are long, left out when there are too many."""
        turned, below = not _fit(spans, self.x), self.y.start + 18
        parts = []
        for span in spans if not turned or _fit_turned(spans, self.x) else ():
            middle = self.x((span.start + span.stop) / 2)
            turn = {"transform": f"rotate(-45 {middle:.1f} {below:.1f})"} if turned else {}
            anchor = "end" if turned else "middle"
            parts.append(text(span.name, middle, below, class_="tick", text_anchor=anchor, **turn))
        return "".join(parts)

    def span_areas(self, spans: Sequence[Span]) -> str:
        """Invisible areas that tell the script of the page the name of what lies under the pointer."""
        size = {"y": self.y.stop, "height": self.y.start - self.y.stop, "fill": "none", "class_": "span"}
        edges = ((self.x(span.start), self.x(span.stop), span.name) for span in spans)
        return "".join(tag("rect", x=left, width=right - left, data_name=name, **size) for left, right, name in edges)


def room_below(spans: Sequence[Span], x: Scale) -> float:
    """The height that the names of the spans take: one line, or more when they are turned by 45 degrees."""
    longest = max((len(span.name) for span in spans), default=0)
    return 30 if _fit(spans, x) or not _fit_turned(spans, x) else 24 + longest * LETTER * 0.71


def _fit(spans: Sequence[Span], x: Scale) -> bool:
    return all(len(span.name) * LETTER < x(span.stop) - x(span.start) for span in spans)


def _fit_turned(spans: Sequence[Span], x: Scale) -> bool:
    return all(x(span.stop) - x(span.start) > LINE for span in spans)


def empty(title: str, width: int) -> str:
    """A figure that says that there is nothing to draw."""
    message = text("Nothing was measured.", width / 2, 44, class_="label", text_anchor="middle")
    scale = Scale(0, 1, 0, 1)
    return Plot(scale, scale, width, 80).svg(title, message)
