"""The last minutes of a service, second by second: what the page draws."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


@dataclass
class Second:
    """What was answered in one second."""

    time: int
    requests: int = 0
    images: int = 0
    entropy: float = 0.0
    confidence: float = 0.0
    labels: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    summary: dict[str, Any] | None = None

    def finish(self) -> None:
        """Keep the point, and let go of the latencies it was made from."""
        self.summary = self.point()
        self.latencies = []

    def point(self) -> dict[str, Any]:
        """The second as means and quantiles; latencies in milliseconds."""
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


class History:
    """The seconds in which something was answered, for a few minutes back. Only one thread may use it.

    >>> history = History(clock=lambda: 100.5)
    >>> history.add(np.array([2]), np.array([0.9]), np.array([0.3]), latency=0.012)
    >>> history.points()[0]["p50_ms"], history.class_mix()
    (12.0, {2: 1})
    """

    def __init__(self, *, seconds: int = 300, clock: Callable[[], float] = time.time) -> None:
        self.seconds = seconds
        self.clock = clock
        self._seconds: deque[Second] = deque()

    def add(self, labels: NDArray[np.int64], confidences: Floats, entropies: Floats, *, latency: float) -> None:
        """Note the answer to one request."""
        now = int(self.clock())
        if not self._seconds or self._seconds[-1].time != now:
            if self._seconds:
                self._seconds[-1].finish()
            self._seconds.append(Second(now))
            self._forget(now)
        second = self._seconds[-1]
        second.requests += 1
        second.images += len(labels)
        second.entropy += float(entropies.sum())
        second.confidence += float(confidences.sum())
        second.labels.update(labels.tolist())
        second.latencies.append(latency)

    def points(self) -> list[dict[str, Any]]:
        """One point per second, the oldest first."""
        self._forget(int(self.clock()))
        return [second.point() for second in self._seconds]

    def class_mix(self, last: int = 60) -> dict[int, int]:
        """How often each class was predicted in the last seconds."""
        since = self.clock() - last
        total: Counter[int] = Counter()
        for second in self._seconds:
            if second.time >= since:
                total += second.labels
        return dict(sorted(total.items()))

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0].time < now - self.seconds:
            self._seconds.popleft()
