"""A memory of domains: which place holds the statistics of which domain, and whether a domain has been here before."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from resitta.errors import BadState
from resitta.training.image_signature import NUMBERS

Floats = NDArray[np.float64]
Distance = Callable[[Floats, Floats], float]


class DomainMemory(nn.Module):
    """Mean signatures of past domains, a bounded number of them; the one not met for longest leaves first.

    >>> memory, far = DomainMemory(2), lambda one, other: abs(one - other).max()
    >>> memory.keep(np.zeros(9)), memory.keep(np.ones(9)), memory.nearest(np.full(9, 0.9), far, within=0.5)
    (0, 1, 1)
    """

    def __init__(self, places: int) -> None:
        super().__init__()
        self.signatures: Floats = np.zeros((places, NUMBERS))
        self.met = np.zeros(places, dtype=np.int64)
        self.clock = 0
        self.present: int | None = None
        """The place of the domain at hand, if it is known."""
        self.recalled = 0
        """How often a domain was recognised."""

    def __len__(self) -> int:
        return len(self.met)

    def keep(self, signature: Floats) -> int:
        """Return the place for the domain at hand, which has this mean signature."""
        place = int(self.met.argmin()) if self.present is None else self.present
        self.clock += 1
        self.signatures[place], self.met[place] = signature, self.clock
        return place

    def nearest(self, signature: Floats, distance: Distance, *, within: float) -> int | None:
        """The place of the domain whose signature is nearest, if any is near enough."""
        apart = {int(place): distance(signature, self.signatures[place]) for place in np.flatnonzero(self.met)}
        best = min(apart, key=apart.__getitem__, default=None)
        return None if best is None or apart[best] > within else best

    def forget(self) -> None:
        """Forget all domains."""
        self.met[:] = 0
        self.present = None

    def get_extra_state(self) -> dict[str, Any]:
        """Return everything, for `state_dict`."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in ("signatures", "met")}
        present = -1 if self.present is None else self.present
        return {**arrays, "clock": self.clock, "present": present, "recalled": self.recalled}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        if state["signatures"].shape != self.signatures.shape:
            found, own = tuple(state["signatures"].shape), self.signatures.shape
            raise BadState(f"the state remembers domains of shape {found}, this method has {own}")
        for name in ("signatures", "met"):
            setattr(self, name, state[name].cpu().numpy().copy())
        self.clock, self.recalled = int(state["clock"]), int(state["recalled"])
        self.present = None if state["present"] < 0 else int(state["present"])
