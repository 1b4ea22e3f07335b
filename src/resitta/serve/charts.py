"""The charts of the live page, as SVG."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from resitta.report.axes import Span
from resitta.report.figures import Series, lines
from resitta.report.marks import Mark, legend
from resitta.serve.events import Kind, LogEntry
from resitta.serve.history import PERIODS, AdaptationHistory, Last, Period, Point, TrafficHistory

SHORTEST = 60
"""Points that a chart shows at least."""
GAP = 5
"""Points without a request that break a line."""
NEAR = 3
"""The bound is drawn from a third of it on; before, it would press the line down to the axis."""
CHARTS: dict[str, dict[str, str]] = {
    "entropy": {"entropy": "entropy"},
    "confidence": {"confidence": "confidence"},
    "drift": {"drift": "drift"},
    "throughput": {"images/s": "images"},
    "latency": {"median": "p50_ms", "99 %": "p99_ms"},
}
"""The lines of each chart: their names, and their keys in a point."""
COLOURS = ("var(--accent, #c2410c)", "var(--second, #14336f)")
MEANINGS: dict[Kind, str] = {
    "domain": "another domain begins",
    "guard": "guard",
    "pause": "learning paused",
    "resume": "learning resumed",
    "rollback": "rolled back",
    "reset": "reset",
    "failure": "failure",
    "control": "other",
}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What the charts of one moment have in common: the time, the period, how much of it is shown, and the marks."""

    now: int
    period: Period
    shown: int
    marks: Sequence[Mark]
    counts: Sequence[tuple[float, float, float]]
    width: int


class Charts:
    """Draws the histories, once a second for each width and period.

    `events` returns the log; `bound` is the guard's of the drift, if there is one.
    """

    def __init__(
        self,
        traffic: TrafficHistory,
        adaptation: AdaptationHistory,
        events: Callable[[], Iterable[LogEntry]],
        *,
        bound: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.traffic, self.adaptation, self.events, self.bound, self.clock = traffic, adaptation, events, bound, clock
        self._drawn: dict[tuple[int, int, Last], dict[str, str]] = {}

    def figures(self, width: int, last: Last = "5min") -> dict[str, str]:
        """Return every chart that has points, and the legend of their marks."""
        now = int(self.clock())
        if (now, width, last) not in self._drawn:
            self._drawn = {key: drawn for key, drawn in self._drawn.items() if key[0] == now}
            self._drawn[now, width, last] = self._draw(now, width, last)
        return self._drawn[now, width, last]

    def _draw(self, now: int, width: int, last: Last) -> dict[str, str]:
        period = PERIODS[last]
        points = {
            name: [point for point in source.points(last) if point["time"] + period.step <= now]  # complete ones
            for name, source in (("traffic", self.traffic), ("adaptation", self.adaptation))
        }
        moved = [point for point in points["adaptation"] if point["drift"] is not None]
        oldest = min((found[0]["time"] for found in points.values() if found), default=now)
        frame = Frame(
            now=now,
            period=period,
            shown=min(period.seconds, max(SHORTEST * period.step, now - oldest)),
            marks=marks_of(self.events(), now),
            counts=[(p["time"] - now, p["time"] - now + period.step, p["updates"]) for p in points["adaptation"]],
            width=width,
        )
        rows = {name: moved if name == "drift" else points["traffic"] for name in CHARTS}
        drawn = {name: draw(name, found, frame, self.bound) for name, found in rows.items() if found}
        return {**drawn, "legend": legend({str(kind): MEANINGS[kind] for kind in get_args(Kind)}, width)}


def marks_of(events: Iterable[LogEntry], now: int) -> list[Mark]:
    """The entries of a log as marks, at seconds before now.

    >>> marks_of([LogEntry(time=90.0, kind="pause", text="learning paused")], now=100)
    [Mark(x=-10.0, kind='pause', name='learning paused')]
    """
    return [Mark(event.time - now, event.kind, event.text) for event in events]


def draw(name: str, points: Sequence[Point], frame: Frame, bound: float | None = None) -> str:
    """Draw a chart of some points; its line breaks where there were no requests."""
    rows: list[Point] = []
    for point in points:
        if rows and point["time"] - rows[-1]["time"] > GAP * frame.period.step:
            rows.append({"time": rows[-1]["time"]})
        rows.append(point)
    ago = tuple(float(row["time"] - frame.now) for row in rows)
    series = [
        Series(label, ago, tuple(_value(row, key, frame.period) for row in rows), colour)
        for (label, key), colour in zip(CHARTS[name].items(), COLOURS, strict=False)
    ]
    note = ""
    if name == "drift" and bound is not None:
        note = "" if near(bound, points) else f"the bound is {bound:g}, beyond this axis ↑"
        series += (
            [] if note else [Series("bound", (-float(frame.shown), 0.0), (bound, bound), COLOURS[1], style="dashed")]
        )
    latest = " and ".join(f"{_value(points[-1], key, frame.period):.3g}" for key in CHARTS[name].values())
    shown = frame.shown
    return lines(
        series,
        title=f"{name}: now {latest}",
        spans=[Span(-shown, 0, "")],
        x_ticks=[(-shown, _ago(shown)), (-shown / 2, _ago(shown / 2)), (0, "now")],
        x_unit="s ago",
        y_top=1.0 if name == "confidence" else None,
        legend=False,  # the page's caption names the lines
        marks=frame.marks,
        counts=frame.counts,
        note=note,
        width=frame.width,
        height=120,
    )


def near(bound: float, points: Sequence[Point]) -> bool:
    """Whether the drift has come so close to its bound that one axis shows both.

    >>> near(1.5, [{"drift": 0.1}]), near(1.5, [{"drift": 0.9}])
    (False, True)
    """
    return bound <= NEAR * max(float(point["drift"]) for point in points)


def _value(row: Point, key: str, period: Period) -> float:
    """A number of a point: images per second, the others as they are."""
    value: float = row.get(key, math.nan)
    return value / period.step if key == "images" else value


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.3g} min ago"
