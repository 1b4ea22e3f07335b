"""The frame of a figure as SVG text: elements, scales with round ticks, axes, and the named spans under them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LINE, LETTER = 15.0, 6.6  # the height of a line of text and the usual width of a letter, in pixels
_GRID = {"stroke": "currentColor", "stroke_opacity": ".14"}
_BORDER = {"stroke": "currentColor", "stroke_opacity": ".35", "stroke_dasharray": "2 3"}


def tag(name: str, *children: str, **attributes: object) -> str:
    """Return an element. Children must be SVG; attribute values are escaped; `_` in names becomes `-`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """Return a line of text, escaped; nothing if it is empty."""
    return tag("text", escape(content), x=x, y=y, **attributes) if content else ""


def number(value: object) -> str:
    """Round coordinates to a tenth of a pixel; leave other values unchanged."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; the middle if the range is a single value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.stop - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values that cover a range, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 83), ticks(22.4, 23.4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [22.4, 22.6, 22.8, 23.0, 23.2, 23.4])
    """
    span = high - low if high > low else max(abs(high), 1.0)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in (1, 2, 5, 10, 20) if span / (s * power) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move label positions apart until neighbours are `gap` from each other, inside [low, high] if they fit.

    >>> spread([10, 11, 50], 10, 0, 100)
    [10, 20, 50]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    floor = low
    for i in order:
        moved[i] = max(moved[i], floor)
        floor = moved[i] + gap
    ceiling = high
    for i in reversed(order):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    return moved


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

    def svg(self, title: str, *parts: str, x_unit: str = "") -> str:
        """Return the whole figure. `figures.js` reads values back from the pixels, and x where it has a unit."""
        axes = [f"{axis.start:.1f} {axis.low:g} {axis.stop:.1f} {axis.high:g}" for axis in (self.x, self.y)]
        return tag(
            "svg",
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {self.width} {self.height:.0f}",
            width=self.width,
            height=round(self.height),
            class_="figure",
            role="img",
            aria_label=title,
            data_x=axes[0] if x_unit else None,
            data_x_unit=x_unit or None,
            data_y=axes[1],
            font_family="system-ui, sans-serif",
            font_size=12,
            fill="currentColor",
        )

    def y_axis(self, ticks: Sequence[float], label: str) -> str:
        """Draw faint horizontal lines with their values, and above them the label."""
        left, right = self.x.start, self.x.stop
        grid = [tag("line", x1=left, x2=right, y1=self.y(v), y2=self.y(v), **_GRID) for v in ticks]
        values = [text(f"{v:g}", left - 8, self.y(v) + 4, class_="tick", text_anchor="end") for v in ticks]
        return "".join(grid + values) + text(label, 0, self.y.stop - 14, class_="label")

    def x_axis(self, ticks: Sequence[tuple[float, str]], label: str) -> str:
        """Draw the texts of the ticks, and below them the label. Texts at the ends stay inside."""
        below, ends = self.y.start + 20, {self.x.low: "start", self.x.high: "end"}
        values = [
            text(value, self.x(place), below, class_="tick", text_anchor=ends.get(place, "middle"))
            for place, value in ticks
        ]
        return "".join(values) + text(label, self.x.stop, below + 20, class_="label", text_anchor="end")

    def borders(self, spans: Sequence[Span]) -> str:
        """Draw faint vertical lines between the spans."""
        edges = [self.x(span.start) for span in spans[1:]]
        return "".join(tag("line", x1=x, x2=x, y1=self.y.stop, y2=self.y.start, **_BORDER) for x in edges)

    def names(self, spans: Sequence[Span]) -> str:
        """Draw the names of the spans under the axis, rotated if they are long, none if there are too many."""
        turned, below = not _fit(spans, self.x), self.y.start + 18
        parts = []
        for span in spans if not turned or _fit_turned(spans, self.x) else ():
            middle = self.x((span.start + span.stop) / 2)
            turn = {"transform": f"rotate(-45 {middle:.1f} {below:.1f})"} if turned else {}
            anchor = "end" if turned else "middle"
            parts.append(text(span.name, middle, below, class_="tick", text_anchor=anchor, **turn))
        return "".join(parts)

    def span_areas(self, spans: Sequence[Span]) -> str:
        """Draw invisible areas, from which `figures.js` takes the name of the span under the pointer."""
        size = {"y": self.y.stop, "height": self.y.start - self.y.stop, "fill": "none", "class_": "span"}
        edges = ((self.x(span.start), self.x(span.stop), span.name) for span in spans)
        return "".join(tag("rect", x=left, width=right - left, data_name=name, **size) for left, right, name in edges)


def room_below(spans: Sequence[Span], x: Scale) -> float:
    """Return the height that the names of the spans take: one line, or more if they are rotated by 45 degrees."""
    longest = max((len(span.name) for span in spans), default=0)
    return 30 if _fit(spans, x) or not _fit_turned(spans, x) else 24 + longest * LETTER * 0.71


def _fit(spans: Sequence[Span], x: Scale) -> bool:
    return all(len(span.name) * LETTER < x(span.stop) - x(span.start) for span in spans)


def _fit_turned(spans: Sequence[Span], x: Scale) -> bool:
    return all(x(span.stop) - x(span.start) > LINE for span in spans)


def empty(title: str, width: int) -> str:
    """Return a figure that says that there is nothing to draw."""
    message = text("Nothing was measured.", width / 2, 44, class_="label", text_anchor="middle")
    scale = Scale(0, 1, 0, 1)
    return Plot(scale, scale, width, 80).svg(title, message)
