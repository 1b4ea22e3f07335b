"""Which known stream looks like a new one, by statistics of images alone (see `resitta.training.domain_shift`)."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadState
from resitta.memory.memory import Memory
from resitta.method import Learner
from resitta.training.domain_shift import HORIZON, LEAST, STATISTICS, image_statistics

Values = NDArray[np.float64]
BOUND = 2.0
"""How many standard deviations apart two streams of one domain may look; beyond, `reset_on_shift` sees a new domain."""


@dataclass(frozen=True)
class Appearance:
    """Means and variances of the image statistics of a stream, over its last `HORIZON` images or so.

    >>> dark, bright = 0.2 * torch.rand(16, 3, 8, 8), torch.rand(16, 3, 8, 8)
    >>> known = {"cellar": Appearance().add(dark), "yard": Appearance().add(bright)}
    >>> nearest(Appearance().add(0.9 * bright), known)
    'yard'
    """

    seen: int = 0
    mean: Values = None  # type: ignore[assignment]
    variance: Values = None  # type: ignore[assignment]

    def add(self, images: Tensor) -> Self:
        """Include further images, in [0, 1]."""
        rows = image_statistics(images).cpu().double().numpy()
        rows = rows[np.isfinite(rows).all(axis=1)]
        if not len(rows):
            return self
        mean, variance = rows.mean(axis=0), rows.var(axis=0)
        if not self.seen:
            return type(self)(len(rows), mean, variance)
        share, between = len(rows) / min(self.seen + len(rows), HORIZON), mean - self.mean
        spread = self.variance + share * (variance - self.variance) + share * (1 - share) * between**2
        return type(self)(min(self.seen + len(rows), HORIZON), self.mean + share * between, spread)

    def distance(self, other: "Appearance") -> float:
        """The largest difference of a mean, in standard deviations of the other one, or in `LEAST` if that is more."""
        return float((np.abs(self.mean - other.mean) / np.maximum(np.sqrt(other.variance), LEAST)).max())

    def state(self) -> dict[str, Any]:
        """Return it for a file."""
        if not self.seen:
            return {}
        return {"seen": self.seen, "mean": torch.from_numpy(self.mean), "variance": torch.from_numpy(self.variance)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Undo `state`."""
        if not state:
            return cls()
        mean, variance = (state[name].cpu().double().numpy() for name in ("mean", "variance"))
        sound = mean.shape == variance.shape == (STATISTICS,) and np.isfinite(mean).all() and (variance >= 0).all()
        if not sound or not int(state["seen"]) > 0:
            raise BadState(f"the appearance of a stream is of shape {mean.shape}, with means {mean.tolist()}")
        return cls(int(state["seen"]), mean, variance)


def nearest(new: Appearance, known: Mapping[str, Appearance]) -> str | None:
    """The known stream that looks most like a new one, if any is within `BOUND`."""
    distances = {name: new.distance(other) for name, other in known.items() if new.seen and other.seen}
    name = min(distances, key=distances.__getitem__, default=None)
    return name if name is not None and distances[name] <= BOUND else None


def copy_networks(known: Learner, new: Learner) -> None:
    """Let a new learner continue with the networks of a known one; its memory of samples and its counters stay."""
    memories = [(module, module.get_extra_state()) for module in new.modules() if isinstance(module, Memory)]
    new.load_state_dict(copy.deepcopy(known.state_dict()))
    new.updates = 0
    for memory, state in memories:
        memory.set_extra_state(state)
