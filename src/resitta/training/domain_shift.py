"""Domain shifts, found by change-point detection on image statistics alone: no label, no model.

Brightness, contrast and sharpness of a few dozen consecutive images hardly change within a domain (one camera, one
weather), whatever they show. Fog, noise or a blur move at least one of them by several standard deviations.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resitta.accel.cuda_graphs import CudaGraphs
from resitta.errors import BadState
from resitta.training.strong_view import grey

STATISTICS = 4
WINDOW = 64
"""How many images in a row are judged together."""
HORIZON = 2048
"""Over how many images the statistics of a domain are averaged, once it has lasted that long."""
LEAST = np.array([0.05, 0.2, 0.2, 0.2])
"""Lower bounds of the standard deviations: frames of a video differ so little that any change would be a shift."""
DARK = 1e-6
"""Below this a variance counts as none: of pixels in [0, 1] it is a quarter of one step in 256."""

Statistics = NDArray[np.float64]


def image_statistics(images: Tensor) -> Tensor:
    """Of each image in [0, 1]: brightness, and the logarithms of contrast, of slope and of curvature; N×4."""
    pixels = grey(images.float())[:, 0]
    slopes = pixels.diff(dim=1), pixels.diff(dim=2)
    curves = slopes[0].diff(dim=1), slopes[1].diff(dim=2)
    energies = pixels.flatten(1).var(dim=1, correction=0), _energy(*slopes), _energy(*curves)
    return torch.stack((pixels.mean((1, 2)), *(0.5 * (energy + DARK).log() for energy in energies)), dim=1)


def _energy(across: Tensor, along: Tensor) -> Tensor:
    return across.flatten(1).square().mean(dim=1) + along.flatten(1).square().mean(dim=1)


class DomainShiftDetector(nn.Module):
    """Detects when a stream of images changes to another domain.

    The mean statistics of each `WINDOW` images are compared with the mean of all before them, in units of the standard
    deviation within windows, or of `LEAST` if that is more. If one of the four differs by more than `bound` of these, a
    new domain has begun; `begun` counts how often.

    >>> shift = DomainShiftDetector(bound=2.0)
    >>> day = torch.rand(256, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> shift(day), shift(0.2 * day), shift(0.2 * day)
    (None, 0, None)
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.begun = 0
        self.replay = CudaGraphs()
        self.waiting: Statistics = np.empty((0, STATISTICS))
        self.seen = 0
        self.mean: Statistics = np.zeros(STATISTICS)
        self.variance: Statistics = np.zeros(STATISTICS)

    def forward(self, images: Tensor) -> int | None:
        """Take the next images of the stream, in [0, 1]; return the index where the last new domain began, if any did.

        It is negative where the window began with earlier images.
        """
        statistics = self.replay(image_statistics, images) if images.is_cuda else image_statistics(images)
        found = statistics.cpu().double().numpy()
        waited = len(self.waiting)
        rows = np.concatenate((self.waiting, found[np.isfinite(found).all(axis=1)]))
        whole = len(rows) // WINDOW * WINDOW
        self.waiting = rows[whole:].copy()
        starts = [start for start in range(0, whole, WINDOW) if self._begins(rows[start : start + WINDOW])]
        self.begun += len(starts)
        return starts[-1] - waited if starts else None

    def due(self, samples: int) -> bool:
        """Whether this many further images complete a window."""
        return len(self.waiting) + samples >= WINDOW

    def _begins(self, window: Statistics) -> bool:
        """Whether this window is the first of a domain; add it to the averages."""
        mean, variance = window.mean(axis=0), window.var(axis=0)
        known = self.seen > 0
        unit = np.maximum(np.sqrt(self.variance), LEAST)
        begins = known and bool((np.abs(mean - self.mean) > self.bound * unit).any())
        if begins or not known:
            self.seen, self.mean, self.variance = WINDOW, mean, variance
        else:
            self.seen = min(self.seen + WINDOW, HORIZON)
            self.mean = self.mean + (mean - self.mean) * WINDOW / self.seen
            self.variance = self.variance + (variance - self.variance) * WINDOW / self.seen
        return begins

    def get_extra_state(self) -> dict[str, Any]:
        """Return what it remembers, for `state_dict`."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in ("waiting", "mean", "variance")}
        return {**arrays, "seen": self.seen, "begun": self.begun}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        shapes = [tuple(state[name].shape[-1:]) for name in ("waiting", "mean", "variance")]
        if shapes != [(STATISTICS,)] * 3 or state["waiting"].ndim != 2:
            raise BadState(f"the state holds image statistics of shapes {shapes}, this method has {STATISTICS} of each")
        for name in ("waiting", "mean", "variance"):
            setattr(self, name, state[name].cpu().numpy().copy())
        self.seen, self.begun = int(state["seen"]), int(state["begun"])
