"""Change-point detection on image signatures: where another domain begins, and whether it has been here before.

Within a domain (one camera, one weather) the mean signature of a few dozen images in a row hardly moves, and it moves
along the directions in which single images differ anyway. Distances are therefore measured in units of the covariance
of single images (Mahalanobis): that of the domain at hand and, while it is new, of those before.
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
BLOCK = 16
"""Images are judged in blocks of this many, alone and together with the block before."""
FEWEST = 4
"""How many of them belong to the new domain at least."""
ALONE = 1.4
"""A block alone must be this many times as far away as two in a row."""
HORIZON = 2048
"""Over how many images the mean signature of a domain is averaged, once it has lasted that long."""
POOLED = 8192
"""Over how many images the covariance is averaged."""
STEADY = 0.4
"""By which share the bound is lower where images of all classes come: means of blocks then differ little."""
SURE = 64
"""From how many images on a domain has a mean that deviations are measured from: runs of a class move single blocks."""
FIRST_GUESS, GUESSED = 0.04, 16.0
"""The variance that is assumed before anything is known, and how many images that counts for."""
CARRIED = 64.0
"""As how many images the covariance counts in the next domain: noise makes images more alike than fog does."""
SHRINKAGE = 0.1
"""How much of the correlations between the numbers is not believed."""
LEAST = 1e-4
"""Lower bound of variances: frames of a video differ so little that any change would count."""


@dataclass(frozen=True)
class Change:
    """Where a domain begins, and what it follows."""

    start: int
    """The index of its first image in the batch; negative where it began with earlier images."""
    left: Floats
    """The mean signature of the domain before; of several changes in a batch, of that before the first."""
    lasted: int
    """Over how many images, at most `HORIZON`."""


class ChangePoints(nn.Module):
    """Finds where the images of a stream change to another domain.

    The mean signatures of each `BLOCK` images, and of the last two blocks, are compared with that of the domain before.
    If the two are further from it than `bound` standard deviations of single images, or the one than `ALONE` times
    that, another domain has begun. Where labels are diverse, the bound is lower.

    >>> rng, changes = np.random.default_rng(0), ChangePoints(bound=2.4)
    >>> day, night = rng.normal(0, 0.2, (320, 9)), rng.normal(1, 0.2, (64, 9))
    >>> changes(day), changes(night).start, changes(night)
    (None, 0, None)
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.found = 0
        self.waiting: Floats = np.empty((0, NUMBERS))
        """Fewer images than a block."""
        self.last: Floats = np.empty((0, NUMBERS))
        """The block that is not yet part of the averages."""
        self.seen = 0
        self.mean: Floats = np.zeros(NUMBERS)
        self.scatter: Floats = np.eye(NUMBERS) * FIRST_GUESS * GUESSED
        self.mass = GUESSED

    def forward(self, signatures: Floats, diversity: float = 0.0) -> Change | None:
        """Take the next signatures of the stream; return the last change among them.

        `diversity`: which share of the classes the latest images show.
        """
        waited = len(self.waiting)
        rows = np.concatenate((self.waiting, signatures[np.isfinite(signatures).all(axis=1)]))
        whole = len(rows) // BLOCK * BLOCK
        self.waiting = rows[whole:].copy()
        change = None
        for start in range(0, whole, BLOCK):
            block = rows[start : start + BLOCK]
            if self._has_changed(block, diversity):
                both = np.concatenate((self.last, block))
                first = self._first_of(both)
                left = (self.mean, self.seen) if change is None else (change.left, change.lasted)
                change = Change(start - waited - len(self.last) + first, *left)
                self._begin()
                block = both[first:]
            self._take(self.last)
            self.last = block.copy()
        return change

    def distance(self, one: Floats, other: Floats) -> float:
        """The Mahalanobis distance of two signatures.

        >>> ChangePoints(bound=2.0).distance(np.zeros(9), np.eye(9)[0]) == 1 / FIRST_GUESS**0.5
        True
        """
        apart = one - other
        return float(np.sqrt(max(0.0, float(apart @ np.linalg.solve(self._covariance(), apart)))))

    def _covariance(self) -> Floats:
        """That of single images, with weaker correlations and bounded variances."""
        covariance = self.scatter / self.mass
        shrunk: Floats = (1 - SHRINKAGE) * covariance
        np.fill_diagonal(shrunk, np.maximum(np.diag(covariance), LEAST))
        return shrunk

    def _has_changed(self, block: Floats, diversity: float) -> bool:
        """Whether a block, or it and the one before, belong to another domain."""
        if not self.seen:
            return False
        mean = block.mean(axis=0)
        both = (mean + self.last.mean(axis=0)) / 2
        bound = self.bound * (1 - STEADY * diversity) if self.seen >= SURE else self.bound
        return self.distance(mean, self.mean) > ALONE * bound or self.distance(both, self.mean) > bound

    def _first_of(self, rows: Floats) -> int:
        """The first image of another domain: those before it fit the last domain, the others their own mean."""
        white = np.linalg.solve(np.linalg.cholesky(self._covariance()), (rows - self.mean).T).T
        before = np.square(white).sum(axis=1).cumsum()
        later = [np.square(white[k:] - white[k:].mean(axis=0)).sum() for k in range(len(rows) - FEWEST + 1)]
        return int(np.argmin(np.concatenate(([0.0], before[: len(later) - 1])) + later))

    def _begin(self) -> None:
        """Begin another domain."""
        self.found += 1
        self.seen, self.mean = 0, np.zeros(NUMBERS)
        self.last = np.empty((0, NUMBERS))
        self._weigh(CARRIED)

    def _weigh(self, most: float) -> None:
        """Let the covariance count as so many images at most."""
        share = min(1.0, most / self.mass)
        self.scatter, self.mass = share * self.scatter, share * self.mass

    def _take(self, block: Floats) -> None:
        """Add a block to the averages of the domain."""
        if not len(block):
            return
        mean = block.mean(axis=0)
        deviations = block - (self.mean if self.seen >= SURE else mean)
        self.seen = min(self.seen + len(block), HORIZON)
        self.mean = self.mean + (mean - self.mean) * len(block) / self.seen
        self.scatter, self.mass = self.scatter + deviations.T @ deviations, self.mass + len(block)
        self._weigh(POOLED)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what it remembers, for `state_dict`."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in _ARRAYS}
        return {**arrays, "seen": self.seen, "found": self.found, "mass": self.mass}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        shapes = [tuple(state[name].shape) for name in _ARRAYS]
        own = (NUMBERS,), (NUMBERS, NUMBERS)
        if any(len(shape) != 2 or shape[1] != NUMBERS for shape in shapes[:2]) or tuple(shapes[2:]) != own:
            raise BadState(f"the state holds signatures of shapes {shapes}, this method has {NUMBERS} numbers in each")
        for name in _ARRAYS:
            setattr(self, name, state[name].cpu().numpy().copy())
        self.seen, self.found, self.mass = int(state["seen"]), int(state["found"]), float(state["mass"])


_ARRAYS = ("waiting", "last", "mean", "scatter")
