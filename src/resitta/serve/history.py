"""The last minutes of traffic, second by second, and the charts that the live page shows of them."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resitta.monitor.callbacks import Callback
from resitta.monitor.events import Compared, FellBack, Labelled, Restarted, Resumed
from resitta.report.axes import Span
from resitta.report.figures import Series, lines

Floats = NDArray[np.floating]
Point = dict[str, Any]

SHORTEST, LONGEST = 60, 300
"""Seconds that a chart shows."""
MOST_POINTS = 300
"""Points of the comparison with the source that are kept."""
GAP = 5
"""Seconds without a request that break a line."""
CHARTS: dict[str, dict[str, str]] = {
    "entropy": {"entropy": "entropy"},
    "confidence": {"confidence": "confidence"},
    "throughput": {"images/s": "images"},
    "latency": {"median": "p50_ms", "99 %": "p99_ms"},
}
"""The lines of each chart: their names, and their keys in a point."""
COLOURS = ("var(--accent, #c2410c)", "var(--second, #14336f)")


class ShadowHistory(Callback):
    """The comparison with the source over time: one point for each event of the shadow, the newest `MOST_POINTS`.

    A point has all numbers that are known by then: `time`, `samples`, `falling_back`; `disagreement`, confidence and
    entropy of both networks; `labelled`, their accuracies, and the difference with its interval.

    >>> history = ShadowHistory(clock=lambda: 100.5)
    >>> from resitta.monitor.shadow import Agreement
    >>> found = Agreement(64, 0.5, 0.9, 0.8, 0.2, 0.4)
    >>> history.on_event(None, Compared(samples=64, running=found, recent=found))
    >>> history.points()[0]["time"], history.points()[0]["disagreement"]
    (100.5, 0.5)
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._known: Point = {"falling_back": False}
        self._points: deque[Point] = deque(maxlen=MOST_POINTS)

    def on_event(self, adapter: Any, event: object) -> None:
        """Add a point, with what the event tells and what others told before."""
        if isinstance(event, Restarted):
            self._known = {"falling_back": False}
        if not isinstance(event, Compared | Labelled | FellBack | Resumed):
            return
        if isinstance(event, Compared):
            numbers = vars(event.recent)
        else:
            found = event.recent
            difference = {f"difference_{bound}": number for bound, number in vars(found.difference).items()}
            accuracies = {"adapted_accuracy": found.adapted.value, "source_accuracy": found.source.value}
            numbers = {"labelled": found.labelled, **accuracies, **difference}
        if isinstance(event, FellBack | Resumed):
            numbers |= {"falling_back": isinstance(event, FellBack)}
        rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}
        self._known = self._known | rounded
        self._points.append({"time": round(self.clock(), 3), "samples": event.samples, **self._known})

    def points(self) -> list[Point]:
        """Return the points, the oldest first."""
        return list(self._points)


@dataclass
class Second:
    """The answers of one second."""

    time: int
    requests: int = 0
    images: int = 0
    entropy: float = 0.0
    confidence: float = 0.0
    labels: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    summary: Point | None = None

    def point(self) -> Point:
        """Return means and quantiles; latencies in milliseconds."""
        if self.summary is not None:
            return self.summary
        median, late = np.percentile(self.latencies, (50, 99)) * 1000
        images = max(1, self.images)
        return {
            "time": self.time,
            "requests": self.requests,
            "images": self.images,
            "entropy": round(self.entropy / images, 4),
            "confidence": round(self.confidence / images, 4),
            "p50_ms": round(float(median), 2),
            "p99_ms": round(float(late), 2),
        }


class TrafficHistory:
    """The seconds of the last minutes in which requests were answered. Not thread-safe.

    >>> history = TrafficHistory(clock=lambda: 100.5)
    >>> history.add(np.array([2]), np.array([0.9]), np.array([0.3]), latency=0.012)
    >>> history.points()[0]["p50_ms"], history.class_mix()
    (12.0, {2: 1})
    """

    def __init__(self, *, seconds: int = LONGEST, clock: Callable[[], float] = time.time) -> None:
        self.seconds = seconds
        self.clock = clock
        self._seconds: deque[Second] = deque()
        self._drawn: dict[tuple[int, int], dict[str, str]] = {}

    def add(self, labels: NDArray[np.int64], confidences: Floats, entropies: Floats, *, latency: float) -> None:
        """Record the answer to one request."""
        now = int(self.clock())
        if not self._seconds or self._seconds[-1].time != now:
            if self._seconds:
                last = self._seconds[-1]
                last.summary, last.latencies = last.point(), []
            self._seconds.append(Second(now))
            self._forget(now)
        second = self._seconds[-1]
        second.requests += 1
        second.images += len(labels)
        second.entropy += float(entropies.sum())
        second.confidence += float(confidences.sum())
        second.labels.update(labels.tolist())
        second.latencies.append(latency)

    def points(self) -> list[Point]:
        """Return one point per second, the oldest first."""
        self._forget(int(self.clock()))
        return [second.point() for second in self._seconds]

    def class_mix(self, last: int = 60) -> dict[int, int]:
        """Count how often each class was predicted in the last seconds."""
        since = self.clock() - last
        total: Counter[int] = Counter()
        for second in self._seconds:
            if second.time >= since:
                total += second.labels
        return dict(sorted(total.items()))

    def figures(self, width: int) -> dict[str, str]:
        """Draw every chart as SVG, once a second for each width; none if there were no requests."""
        now = int(self.clock())
        if (now, width) not in self._drawn:
            self._drawn = {key: drawn for key, drawn in self._drawn.items() if key[0] == now}
            points = [point for point in self.points() if point["time"] < now]  # this second is not complete
            self._drawn[now, width] = {name: draw(name, points, now, width) for name in CHARTS if points}
        return self._drawn[now, width]

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0].time < now - self.seconds:
            self._seconds.popleft()


def draw(name: str, points: Sequence[Point], now: int, width: int) -> str:
    """Draw a chart of some points up to now; its line breaks where there were no requests."""
    shown = min(LONGEST, max(SHORTEST, now - points[0]["time"]))
    rows: list[Point] = []
    for point in points:
        if rows and point["time"] - rows[-1]["time"] > GAP:
            rows.append({"time": rows[-1]["time"]})
        rows.append(point)
    ago = tuple(row["time"] - now for row in rows)
    series = [
        Series(label, ago, tuple(row.get(key, math.nan) for row in rows), colour)
        for (label, key), colour in zip(CHARTS[name].items(), COLOURS, strict=False)
    ]
    latest = " and ".join(f"{points[-1][key]:.3g}" for key in CHARTS[name].values())
    return lines(
        series,
        title=f"{name}: now {latest}",
        spans=[Span(-shown, 0, "")],
        x_ticks=[(-shown, _ago(shown)), (-shown / 2, _ago(shown / 2)), (0, "now")],
        x_unit="s ago",
        y_top=1.0 if name == "confidence" else None,
        legend=False,  # the page's caption names the lines
        width=width,
        height=120,
    )


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.3g} min ago"
