"""The run loop: a stream through an adapter, and what is measured on the way."""

import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.adapter import Adapter
from resitta.bench.record import RunRecord, now, settings_of
from resitta.data.streams import Stream
from resitta.training.entropy import entropy, log_probabilities

Progress = Callable[[int, int], None]


def run_stream(
    adapter: Adapter, stream: Stream, *, batch_size: int = 64, points: int = 300, progress: Progress | None = None
) -> RunRecord:
    """Predict a whole stream, in order, without a reset, and measure what the protocol asks for.

    `points`: how many values the traces over time hold at most. `progress(done, total)` is called after every batch.
    """
    device = adapter.source.device
    metrics, seconds, done = Metrics(), 0.0, 0
    drift: dict[int, float] = {}
    next_drift, between = 0, max(1, len(stream) // max(1, points // 3))
    first_memory = most_memory = _host_memory_mb()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for batch in stream.batches(batch_size, device):
        begin = time.perf_counter()
        logits = adapter(batch.images)
        metrics.add(logits, batch.labels, batch.domains)  # waits for the device, so the clock is right
        seconds += time.perf_counter() - begin
        done += len(batch.labels)
        most_memory = max(most_memory, _host_memory_mb())
        if done >= next_drift:
            drift[done], next_drift = round(adapter.stats.mean_drift, 5), done + between
        if progress:
            progress(done, len(stream))
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
        drift_at=tuple(drift),
        drift_over_time=tuple(drift.values()),
        drift_per_layer=stats.drift,
        bank_per_class=stats.bank.per_class if stats.bank else (),
        ece=metrics.ece(),
        nll=metrics.nll(),
        updates=stats.updates,
        seconds=seconds,
        device_memory_mb=torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0,
        host_memory_mb=most_memory - first_memory,
        made=now(),
    )


def _host_memory_mb() -> float:
    """Anonymous memory of the process; pages of memory-mapped images can be reclaimed and do not count."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the peak since the process began
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 2**10


Floats = NDArray[np.float64]
BINS = 15


def calibration_error(confidence: Floats, correct: NDArray[np.bool_], bins: int = BINS) -> float:
    """ECE: the mean gap between confidence and accuracy over equally wide bins of confidence, weighted by size.

    >>> calibration_error(np.array([0.9, 0.9]), np.array([True, False]))  # 90 % sure, 50 % right
    0.4
    """
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, weights=confidence - correct, minlength=bins)
    return round(float(np.abs(gaps).sum() / max(1, len(confidence))), 12)


class Metrics:
    """Collects one number per sample on the host; a stream of 150,000 samples takes a few megabytes."""

    def __init__(self) -> None:
        self._rows: list[Floats] = []
        self._domains: list[NDArray[np.int64]] = []

    def add(self, logits: Tensor, labels: NDArray[np.int64], domains: NDArray[np.int64]) -> None:
        """Take in a batch, with one copy from the device."""
        logits = logits.float()
        target = torch.from_numpy(labels).to(logits.device)
        log_p = log_probabilities(logits)
        nll = -log_p.gather(1, target[:, None])[:, 0]
        correct = (logits.argmax(dim=1) == target).float()
        rows = torch.stack((correct, log_p.amax(dim=1).exp(), nll, entropy(logits)))
        self._rows.append(rows.cpu().numpy().astype(np.float64))
        self._domains.append(domains)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which samples were classified right, in stream order."""
        return self._row(0).astype(np.bool_)

    def domain_errors(self, domains: int) -> list[float]:
        """Wrong / samples of each domain, in per cent."""
        which = np.concatenate(self._domains)
        wrong = np.bincount(which, weights=~self.correct, minlength=domains)
        errors: Floats = 100 * wrong / np.maximum(1, np.bincount(which, minlength=domains))
        return [float(error) for error in errors]

    def ece(self) -> float:
        """Expected calibration error, between 0 and 1."""
        return calibration_error(self._row(1), self.correct)

    def nll(self) -> float:
        """Mean negative log likelihood of the true class, in nats."""
        return float(self._row(2).mean())

    def over_time(self, window: int) -> dict[str, list[float]]:
        """Mean error (per cent) and entropy (nats) of consecutive windows of samples."""
        starts = np.arange(0, len(self.correct), window)
        sizes = np.diff(np.append(starts, len(self.correct)))
        error = 100 * np.add.reduceat(~self.correct, starts, dtype=np.float64) / sizes
        mean_entropy = np.add.reduceat(self._row(3), starts) / sizes
        return {"error": error.round(3).tolist(), "entropy": mean_entropy.round(5).tolist()}

    def _row(self, number: int) -> Floats:
        return np.concatenate([rows[number] for rows in self._rows])
