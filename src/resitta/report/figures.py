"""Line and bar charts as SVG text, for reports and for the service's live page.

Colours are CSS variables of the page, so that one drawing fits a light and a dark page. Each is drawn for a given
width in pixels; a report holds a wide and a narrow drawing and shows the one that fits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from resitta.report.axes import LETTER, LINE, Plot, Scale, Span, empty, room_below, spread, tag, text, ticks
from resitta.report.marks import ROOM, Mark, draw_counts, draw_marks

WIDE, NARROW, SMALL = 960, 380, 340
Style = Literal["plain", "strong", "dashed"]


@dataclass(frozen=True)
class Series:
    """A line of a figure. NaN leaves a gap; `strong` is for the one line to look at."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: str = "currentColor"
    style: Style = "plain"
    dots: bool = False

    def finite(self) -> list[tuple[float, float]]:
        """Return the points that can be drawn."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if math.isfinite(y)]


@dataclass(frozen=True)
class Band:
    """A strip of coloured spans above a figure; `named`: with the names of those that have room below them."""

    label: str
    pieces: Sequence[tuple[Span, str]]
    named: bool = False

    @property
    def height(self) -> float:
        """With its label above, and a gap below."""
        return 16 + BAND + (LINE if self.named else 0) + 10

    def svg(self, x: Scale, top: float) -> str:
        """Draw it below a height."""
        parts = [text(self.label, x.start, top + 11, class_="label")]
        for span, colour in self.pieces:
            left, right = x(span.start), x(span.stop)
            tip = tag("title", escape(f"{span.name}, {span.stop - span.start:g}"))
            parts.append(tag("rect", tip, x=left, y=top + 16, width=right - left, height=BAND, fill=colour))
            if self.named and len(span.name) * LETTER < right - left:
                parts.append(
                    text(span.name, (left + right) / 2, top + 16 + BAND + 13, class_="tick", text_anchor="middle")
                )
        return "".join(parts)


BAND = 22.0
"""The height of a strip, in pixels."""


def lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "",
    y_label: str = "",
    spans: Sequence[Span] = (),
    x_ticks: Sequence[tuple[float, str]] = (),
    x_unit: str = "",
    from_zero: bool = True,
    y_top: float | None = None,
    legend: bool = True,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] | None = None,
    counts: Sequence[tuple[float, float, float]] = (),
    note: str = "",
    width: int = WIDE,
    height: int | None = None,
) -> str:
    """Draw lines over a common axis, named at their ends if the figure is wide and in a legend if it is narrow.

    `spans` give the axis borders and names. With an `x_label` or `x_ticks` it has values instead, and the spans only
    name what lies under the pointer; with an `x_unit` the value there is named. A single series needs no name. `bands`
    stand above the lines and share their axis, and so do `marks`; None takes no room for them. `counts` are (start,
    stop, count) of the strip below. The `note` stands in the upper right corner.

    >>> svg = lines([Series("TENT", (0, 1, 2), (30.0, float("nan"), 20.0))], title="Error over time")
    >>> svg.startswith("<svg") and "Error over time" in svg
    True
    """
    series = [s for s in series if s.finite()]
    if not series:
        return empty(title, width)
    key, top = _legend(series, width) if legend and width < WIDE else ("", 30.0 if y_label else 8.0)
    above = max(0.0, top - 30)
    tops = [above + sum(band.height for band in bands[:place]) for place in range(len(bands))]
    top += sum(band.height for band in bands) + (0 if marks is None else ROOM)
    height = height or (250 if width >= WIDE else 200)
    ys = [y for s in series for _, y in s.finite()]
    highest = max(ys) if y_top is None else y_top
    lowest = 0 if from_zero else min(*ys, 0.9 * highest)  # no zooming into the noise
    y_ticks = ticks(lowest, highest, most=6 if height >= 200 else 2)
    x = _x_scale(series, spans, width)
    valued = bool(x_label or x_ticks)
    bottom = (48 if x_label else 28) if valued else room_below(spans, x)
    plot = Plot(x, Scale(y_ticks[0], y_ticks[-1], top + height, top), width, top + height + bottom)
    named = plot.borders(spans) + plot.names(spans)
    x_axis = plot.x_axis(x_ticks or _inner_ticks(x), x_label) if valued else named
    drawn = [_line(plot, s) for s in sorted(series, key=lambda s: s.style == "strong")]
    ends = _end_labels(plot, series) if width >= WIDE else ""
    strips = [band.svg(x, place) for band, place in zip(bands, tops, strict=True)]
    said = text(note, x.stop, plot.y.stop + 13, class_="label note", text_anchor="end")
    happened = draw_marks(plot, marks or ()) + draw_counts(plot, counts)
    parts = (*strips, key, plot.y_axis(y_ticks, y_label), x_axis, plot.span_areas(spans), happened, *drawn, ends, said)
    return plot.svg(title, *parts, x_unit=x_unit)


def bars(
    values: Sequence[float],
    *,
    labels: Sequence[str],
    title: str,
    y_label: str = "",
    colour: str = "currentColor",
    width: int = WIDE,
) -> str:
    """Draw a bar for each value, with its label below when all labels have room."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return empty(title, width)
    x, y_ticks = Scale(0, len(values), 44, width - 4), ticks(0, max(finite), 4)
    spans = [Span(place, place + 1, label) for place, label in enumerate(labels)]
    plot = Plot(x, Scale(0, y_ticks[-1], 190, 30), width, 190 + room_below(spans, x))
    drawn = [_bar(plot, span, value, colour) for span, value in zip(spans, values, strict=True)]
    return plot.svg(title, plot.y_axis(y_ticks, y_label), *drawn, plot.names(spans))


def _bar(plot: Plot, span: Span, value: float, colour: str) -> str:
    left, right, top = plot.x(span.start), plot.x(span.stop), plot.y(value if math.isfinite(value) else 0)
    width, tip = min(28.0, 0.7 * (right - left)), tag("title", escape(f"{span.name}: {value:g}"))
    middle, height = (left + right) / 2, plot.y.start - top
    return tag("rect", tip, x=middle - width / 2, y=top, width=width, height=height, fill=colour, rx=2)


def _x_scale(series: Sequence[Series], spans: Sequence[Span], width: int) -> Scale:
    """Choose the range, and leave room for the values of the y axis and for names at the ends of the lines."""
    xs = [x for s in series for x, _ in s.finite()]
    inset = 0 if spans else 16
    right = max(len(s.label) for s in series) * LETTER + 16 if width >= WIDE and len(series) > 1 else 8
    low, high = min(xs + [span.start for span in spans]), max(xs + [span.stop for span in spans])
    return Scale(low, high, 44 + inset, width - right - inset)


def _inner_ticks(x: Scale) -> list[tuple[float, str]]:
    return [(tick, f"{tick:,g}") for tick in ticks(x.low, x.high) if x.low <= tick <= x.high]


def _line(plot: Plot, series: Series) -> str:
    """Draw a path with gaps where values are missing; a point between gaps is a dot (the round cap of `h0`)."""
    steps, pen = [], _MOVE
    for x, y in zip(series.x, series.y, strict=True):
        if math.isfinite(y):
            steps.append(pen.format(plot.x(x), plot.y(y)))
        pen = _DRAW if math.isfinite(y) else _MOVE
    points = series.finite() if series.dots or len(series.finite()) == 1 else []
    dots = [tag("circle", tag("title", f"{y:.1f}"), cx=plot.x(x), cy=plot.y(y), r=3.2) for x, y in points]
    dots = [tag("g", *dots, fill=series.colour, stroke="none")] if dots else []
    return _stroke(series, tag("path", d="".join(steps), data_label=series.label), *dots)


_MOVE, _DRAW = "M{:.1f},{:.1f}h0", "L{:.1f},{:.1f}"
_WIDTHS: dict[Style, float] = {"plain": 1.6, "strong": 3.2, "dashed": 1.6}


def _stroke(series: Series, *children: str) -> str:
    """Apply the style of a series to paths."""
    dashes = "5 4" if series.style == "dashed" else None
    look = {"stroke": series.colour, "stroke_width": _WIDTHS[series.style], "stroke_dasharray": dashes, "fill": "none"}
    return tag("g", *children, class_="series", stroke_linecap="round", stroke_linejoin="round", **look)


def _end_labels(plot: Plot, series: Sequence[Series]) -> str:
    """Draw names beside the last points, moved apart where lines end close to each other."""
    if len(series) < 2:
        return ""
    wanted = [plot.y(s.finite()[-1][1]) for s in series]
    places = spread(wanted, LINE, plot.y.stop, plot.y.start)
    return "".join(
        text(s.label, plot.x.stop + 10, place + 4, fill=s.colour, font_weight=700 if s.style == "strong" else None)
        for s, place in zip(series, places, strict=True)
    )


def _legend(series: Sequence[Series], width: int) -> tuple[str, float]:
    """Draw names with a piece of their line, in as many rows as they need; return them and the top of the plot."""
    if len(series) < 2:
        return "", 30.0
    parts, x, y = [], 0.0, 12.0
    for s in series:
        length = 38 + len(s.label) * LETTER
        if x and x + length > width:
            x, y = 0.0, y + 20
        parts.append(_stroke(s, tag("path", d=f"M{x + 1:.1f},{y - 4:.1f}h16")))
        parts.append(text(s.label, x + 23, y, class_="tick"))
        x += length
    return "".join(parts), y + 48
