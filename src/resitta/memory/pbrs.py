"""PBRS, NOTE's prediction-balanced reservoir sampling."""

from typing import Any

import numpy as np
import torch

from resitta.memory.memory import Memory, random_choice


class PBRS(Memory):
    """The memory of NOTE: balanced between predicted classes, uniform over time within each.

    A newcomer of a class that is not among the largest takes a random place in one of the largest. Otherwise it
    replaces a random sample of its own class with the probability of reservoir sampling, stored/seen.
    """

    def __init__(self, capacity: int, *, generator: torch.Generator) -> None:
        super().__init__(capacity)
        self.generator = generator
        self.seen: dict[int, int] = {}

    def admit(self, label: int, entropy: float) -> int | None:
        """Find a slot: class balance first, then reservoir sampling."""
        self.seen[label] = self.seen.get(label, 0) + 1
        if self.size < self.capacity:
            return self.size
        counts = self.counts
        largest = np.flatnonzero(counts == counts.max())
        if label not in largest:
            label = random_choice(largest, self.generator)
        elif torch.rand((), generator=self.generator, device="cpu") > counts[label] / self.seen[label]:
            return None
        return random_choice(np.flatnonzero(self.labels == label), self.generator)

    def keep(self) -> dict[str, Any]:
        """Add the counts of samples seen."""
        return {**super().keep(), "seen": dict(self.seen)}

    def get_extra_state(self) -> dict[str, Any]:
        """Add the counts of samples seen."""
        return {**super().get_extra_state(), "seen": dict(self.seen)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the counts back."""
        super().set_extra_state(state)
        self.seen = dict(state["seen"])
