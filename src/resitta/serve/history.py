"""What the service keeps of its last minutes and its last hour: traffic, adaptation, and how the source compares."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from resitta.monitor.callbacks import Callback
from resitta.monitor.events import Compared, FellBack, Labelled, Restarted, Resumed

Floats = NDArray[np.floating]
Point = dict[str, Any]

MOST_POINTS = 300
"""Points of the comparison with the source that are kept."""
MOST_LATENCIES = 10_000
"""Requests of one step whose latencies are kept until it is over."""
RECENT = 60
"""Seconds of which the predicted classes are counted."""
Last = Literal["5min", "1h"]


@dataclass(frozen=True)
class Period:
    """How far back a history goes, and the seconds of one of its points."""

    seconds: int
    step: int


PERIODS: dict[Last, Period] = {"5min": Period(300, 1), "1h": Period(3600, 10)}


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


class Interval(Protocol):
    """A step of time that is being filled; `point` is what remains of it."""

    def point(self) -> Point:
        """Return its numbers."""


S = TypeVar("S", bound=Interval)


class Timeline(Generic[S]):
    """The points of the last `period.seconds`, one per step in which something was recorded.

    >>> timeline = Timeline(Adaptation, Period(seconds=20, step=10))
    >>> for now in (100, 105, 117):
    ...     timeline.at(now).add(updates=1, drift=0.5)
    >>> timeline.points(117), timeline.points(135)
    ([{'time': 100, 'updates': 2, 'drift': 0.5}, {'time': 110, 'updates': 1, 'drift': 0.5}], [])
    """

    def __init__(self, make: Callable[[int], S], period: Period) -> None:
        self.make, self.period = make, period
        self._closed: deque[Point] = deque(maxlen=period.seconds // period.step)
        self._open: tuple[int, S] | None = None

    def at(self, now: float) -> S:
        """The interval of a time; a later time closes the one before."""
        start = int(now) // self.period.step * self.period.step
        if self._open is None or self._open[0] != start:
            if self._open is not None:
                self._closed.append(self._open[1].point())
            self._open = (start, self.make(start))
        return self._open[1]

    def points(self, now: float) -> list[Point]:
        """The points of the period before a time, the oldest first; the last one may not be complete."""
        found = [*self._closed, *([] if self._open is None else [self._open[1].point()])]
        return [point for point in found if point["time"] >= int(now) - self.period.seconds]


@dataclass
class Answers:
    """The answers of some seconds."""

    time: int
    requests: int = 0
    images: int = 0
    entropy: float = 0.0
    confidence: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_LATENCIES))

    def add(self, confidences: Floats, entropies: Floats, latency: float) -> None:
        """Record the answer to one request."""
        self.requests += 1
        self.images += len(entropies)
        self.entropy += float(entropies.sum())
        self.confidence += float(confidences.sum())
        self.latencies.append(latency)

    def point(self) -> Point:
        """Return means and quantiles; latencies in milliseconds."""
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


@dataclass
class Adaptation:
    """The updates of some seconds, and the largest drift in them; None if the method keeps no statistics."""

    time: int
    updates: int = 0
    drift: float | None = None

    def add(self, updates: int, drift: float | None) -> None:
        """Record further updates and the present drift."""
        self.updates += updates
        if drift is not None:
            self.drift = round(max(drift, self.drift or 0.0), 4)

    def point(self) -> Point:
        """Return the numbers."""
        return dict(vars(self))


class TrafficHistory:
    """What was answered in the last minutes and in the last hour. Not thread-safe.

    >>> history = TrafficHistory(clock=lambda: 100.5)
    >>> history.add(np.array([2]), np.array([0.9]), np.array([0.3]), latency=0.012)
    >>> history.points()[0]["p50_ms"], history.points("1h")[0]["time"], history.class_mix()
    (12.0, 100, {2: 1})
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._timelines = {last: Timeline(Answers, period) for last, period in PERIODS.items()}
        self._labels: deque[tuple[int, Counter[int]]] = deque(maxlen=RECENT + 1)

    def add(self, labels: NDArray[np.int64], confidences: Floats, entropies: Floats, *, latency: float) -> None:
        """Record the answer to one request."""
        now = self.clock()
        for timeline in self._timelines.values():
            timeline.at(now).add(confidences, entropies, latency)
        if not self._labels or self._labels[-1][0] != int(now):
            self._labels.append((int(now), Counter()))
        self._labels[-1][1].update(labels.tolist())

    def points(self, last: Last = "5min") -> list[Point]:
        """Return one point per step with requests, the oldest first."""
        return self._timelines[last].points(self.clock())

    def class_mix(self, seconds: int = RECENT) -> dict[int, int]:
        """Count how often each class was predicted in the last seconds, at most `RECENT`."""
        since = self.clock() - seconds
        total: Counter[int] = Counter()
        for second, labels in self._labels:
            if second >= since:
                total += labels
        return dict(sorted(total.items()))


class AdaptationHistory:
    """Updates and drift of the last minutes and of the last hour, from the counters as they are at some times.

    >>> history = AdaptationHistory(clock=lambda: 100.5)
    >>> history.add(updates=7, drift=0.25)
    >>> history.add(updates=9, drift=0.5)
    >>> history.points()
    [{'time': 100, 'updates': 2, 'drift': 0.5}]
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._updates: int | None = None
        self._timelines = {last: Timeline(Adaptation, period) for last, period in PERIODS.items()}

    def add(self, updates: int, drift: float | None) -> None:
        """Record the counter of updates, which a rollback lowers, and the drift."""
        before, self._updates = updates if self._updates is None else self._updates, updates
        for timeline in self._timelines.values():
            timeline.at(self.clock()).add(max(0, updates - before), drift)

    def points(self, last: Last = "5min") -> list[Point]:
        """Return one point per step, the oldest first."""
        return self._timelines[last].points(self.clock())
