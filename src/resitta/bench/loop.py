"""The loop: a stream through an adapter, measured."""

import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

from resitta.adapter import Adapter
from resitta.bench.metrics import Metrics
from resitta.bench.record import RunRecord, now, settings_of
from resitta.data.streams import Stream

Progress = Callable[[int, int], None]
Watch = Callable[[Adapter, int], None]


def run_stream(
    adapter: Adapter,
    stream: Stream,
    *,
    batch_size: int = 64,
    points: int = 300,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> RunRecord:
    """Predict a whole stream, in order, without a reset, and measure what the protocol asks for.

    `points`: how many values the traces over time hold at most. `progress(done, total)` and `watch(adapter, done)`
    are called after every batch.
    """
    device = adapter.source.device
    metrics, drift, seconds, done = Metrics(), DriftTrace(len(stream), points // 3), 0.0, 0
    host = HostMemory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for batch in stream.batches(batch_size, device):
        begin = time.perf_counter()
        logits = adapter(batch.images)
        metrics.add(logits, batch.labels, batch.domains)  # waits for the device, so the clock is right
        seconds += time.perf_counter() - begin
        done += len(batch.labels)
        drift.look(adapter, done)
        host.look()
        if progress:
            progress(done, len(stream))
        if watch:
            watch(adapter, done)
    window = max(1, -(-len(stream) // points))
    over_time, stats = metrics.over_time(window), adapter.stats
    return RunRecord(
        method=adapter.method.name,
        title=vars(type(adapter.method)).get("title", ""),  # of this class, not of the one it derives from
        settings=settings_of(adapter.method),
        seed=adapter.options.seed,
        domains=stream.names,
        borders=stream.borders,
        samples=len(stream),
        errors=tuple(metrics.domain_errors(len(stream.names))),
        window=window,
        error_over_time=tuple(over_time["error"]),
        entropy_over_time=tuple(over_time["entropy"]),
        drift_at=tuple(drift.at),
        drift_over_time=tuple(drift.values),
        drift_per_layer=stats.drift,
        bank_per_class=stats.bank.per_class if stats.bank else (),
        ece=metrics.ece(),
        nll=metrics.nll(),
        updates=stats.updates,
        seconds=seconds,
        device_memory_mb=_device_memory_mb(device),
        host_memory_mb=host.growth,
        made=now(),
    )


class DriftTrace:
    """The mean drift of the statistics, looked at a limited number of times."""

    def __init__(self, total: int, points: int) -> None:
        self.every = max(1, total // max(1, points))
        self.at: list[int] = []
        self.values: list[float] = []

    def look(self, adapter: Adapter, done: int) -> None:
        """Note the drift if enough samples have come since the last look."""
        if not self.at or done - self.at[-1] >= self.every:
            self.at.append(done)
            self.values.append(round(adapter.stats.mean_drift, 5))


class HostMemory:
    """The most memory the process held at a time, beyond what it held at first, in MB.

    Only anonymous memory counts: pages of memory-mapped images are the system's to take back.
    """

    def __init__(self) -> None:
        self.first = self.most = self._now()

    def look(self) -> None:
        """Take a reading."""
        self.most = max(self.most, self._now())

    @property
    def growth(self) -> float:
        """The peak so far."""
        return self.most - self.first

    @staticmethod
    def _now() -> float:
        status = Path("/proc/self/status")
        if not status.exists():  # elsewhere than on Linux: the process's all-time peak is the best there is
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 2**10


def _device_memory_mb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0
