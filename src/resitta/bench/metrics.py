"""What is measured on a stream: error per domain and over time, calibration, and how far the statistics drift."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.training.entropy import entropy, log_probabilities

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
    """Collects one number per sample on the host; a stream of 150,000 samples takes a few megabytes.

    >>> metrics = Metrics()
    >>> metrics.add(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), np.array([0, 1]), np.array([0, 0]))
    >>> metrics.domain_errors(1)
    [50.0]
    """

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
