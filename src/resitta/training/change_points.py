"""Change-point detection on image signatures: where another domain begins, and whether it has been here before.

Within a domain (one camera, one weather) the mean signature of a few dozen images in a row hardly moves, and it moves
along the directions in which single images differ anyway. Distances are therefore measured in units of the covariance
of single images (Mahalanobis), pooled over everything seen between changes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from resitta.errors import BadState
from resitta.training.image_signature import NUMBERS

Floats = NDArray[np.float64]
WINDOW = 32
"""How many images in a row are judged together."""
HORIZON = 2048
"""Over how many images the mean signature of a domain is averaged, once it has lasted that long."""
POOLED = 8192
"""Over how many images the covariance is averaged."""
FIRST_GUESS, GUESSED = 0.04, 16.0
"""The variance that is assumed before anything is known, and how many images that counts for."""
SHRINKAGE = 0.1
"""How much of the correlations between the numbers is not believed."""
LEAST = 1e-4
"""Lower bound of variances: frames of a video differ so little that any change would count."""


@dataclass(frozen=True)
class Change:
    """Where a domain begins, and what it follows."""

    start: int
    """The index of its first image in the batch; negative where the window began with earlier images."""
    left: Floats
    """The mean signature of the domain before."""
    lasted: int
    """Over how many images, at most `HORIZON`."""


class ChangePoints(nn.Module):
    """Finds where the images of a stream change to another domain.

    The mean signature of each `WINDOW` images is compared with the mean of the domain so far. If they are further apart
    than `bound` standard deviations of single images, another domain has begun.

    >>> rng, changes = np.random.default_rng(0), ChangePoints(bound=2.2)
    >>> day, night = rng.normal(0, 0.2, (320, 9)), rng.normal(1, 0.2, (64, 9))
    >>> changes(day), changes(night).start, changes(night)
    (None, 0, None)
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.found = 0
        self.waiting: Floats = np.empty((0, NUMBERS))
        self.seen = 0
        self.mean: Floats = np.zeros(NUMBERS)
        self.scatter: Floats = np.eye(NUMBERS) * FIRST_GUESS * GUESSED
        self.mass = GUESSED

    def forward(self, signatures: Floats) -> Change | None:
        """Take the next signatures of the stream; return the last change among them."""
        waited = len(self.waiting)
        rows = np.concatenate((self.waiting, signatures[np.isfinite(signatures).all(axis=1)]))
        whole = len(rows) // WINDOW * WINDOW
        self.waiting = rows[whole:].copy()
        change = None
        for start in range(0, whole, WINDOW):
            left, lasted = self.mean, self.seen
            if self._begins(rows[start : start + WINDOW]):
                change = Change(start - waited, left, lasted)
                self.found += 1
        return change

    def distance(self, one: Floats, other: Floats) -> float:
        """The Mahalanobis distance of two signatures.

        >>> ChangePoints(bound=2.0).distance(np.zeros(9), np.eye(9)[0]) == 1 / FIRST_GUESS**0.5
        True
        """
        covariance = self.scatter / self.mass
        diagonal = np.diag(np.maximum(np.diag(covariance), LEAST))
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * diagonal
        np.fill_diagonal(covariance, np.diag(diagonal))
        apart = one - other
        return float(np.sqrt(max(0.0, apart @ np.linalg.solve(covariance, apart))))

    def _begins(self, window: Floats) -> bool:
        """Whether this window is the first of a domain; add it to the averages."""
        mean = window.mean(axis=0)
        begins = self.seen > 0 and self.distance(mean, self.mean) > self.bound
        self.seen = WINDOW if begins else min(self.seen + WINDOW, HORIZON)
        self.mean = self.mean + (mean - self.mean) * WINDOW / self.seen
        deviations = window - mean
        self.scatter, self.mass = self.scatter + deviations.T @ deviations, self.mass + WINDOW
        if self.mass > POOLED:
            self.scatter, self.mass = self.scatter / 2, self.mass / 2
        return begins

    def get_extra_state(self) -> dict[str, Any]:
        """Return what it remembers, for `state_dict`."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in ("waiting", "mean", "scatter")}
        return {**arrays, "seen": self.seen, "found": self.found, "mass": self.mass}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        shapes = [tuple(state[name].shape) for name in ("waiting", "mean", "scatter")]
        if shapes != [(shapes[0][0], NUMBERS), (NUMBERS,), (NUMBERS, NUMBERS)]:
            raise BadState(f"the state holds signatures of shapes {shapes}, this method has {NUMBERS} numbers in each")
        for name in ("waiting", "mean", "scatter"):
            setattr(self, name, state[name].cpu().numpy().copy())
        self.seen, self.found, self.mass = int(state["seen"]), int(state["found"]), float(state["mass"])
