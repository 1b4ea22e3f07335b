"""The detector of domains, written out over the whole stream."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass
class NaiveChangePoints:
    """Keeps the images of the domain, block by block; sums over them are made anew whenever they are needed.

    `found` are the changes: the index of the first image in the stream, the mean signature of the domain before, and of
    how many images.
    """

    bound: float
    deviations: list[tuple[float, Floats]] = field(default_factory=list)
    guess: float = 16.0
    domain: list[Floats] = field(default_factory=list)
    before: list[Floats] = field(default_factory=list)
    found: list[tuple[int, Floats, int]] = field(default_factory=list)

    diversity: float = 0.0
    waiting: list[Floats] = field(default_factory=list)
    blocks: int = 0

    def run(self, rows: Floats, diversity: float = 0.0) -> list[tuple[int, Floats, int]]:
        """Take the next images of the stream; return all changes so far."""
        self.diversity = diversity
        for row in rows:
            self.waiting.append(row)
            if len(self.waiting) == 16:
                self.take(16 * self.blocks, self.waiting)
                self.waiting, self.blocks = [], self.blocks + 1
        return self.found

    def take(self, start: int, block: list[Floats]) -> None:
        if self.domain and self.is_new(block):
            both = self.before + block
            first = self.border(both)
            self.found.append((start - len(self.before) + first, np.mean(self.domain, axis=0), len(self.domain)))
            self.domain, self.before, block = [], [], both[first:]
            self.limit(64.0)
        self.add(self.before)
        self.before = block

    def is_new(self, block: list[Floats]) -> bool:
        two = (np.mean(block, axis=0) + np.mean(self.before, axis=0)) / 2
        bound = self.bound * (1 - 0.4 * self.diversity * (len(self.domain) >= 64))
        return self.distance(np.mean(block, axis=0)) > 1.4 * bound or self.distance(two) > bound

    def covariance(self) -> Floats:
        total = self.guess + sum(weight for weight, _ in self.deviations)
        matrix = np.eye(9) * 0.04 * self.guess
        for weight, deviation in self.deviations:
            matrix = matrix + weight * np.outer(deviation, deviation)
        matrix = matrix / total
        for i in range(9):
            for j in range(9):
                matrix[i, j] = max(matrix[i, i], 1e-4) if i == j else 0.9 * matrix[i, j]
        return matrix

    def distance(self, signature: Floats) -> float:
        apart = signature - np.mean(self.domain, axis=0)
        return float(np.sqrt(apart @ np.linalg.inv(self.covariance()) @ apart))

    def border(self, both: list[Floats]) -> int:
        """Where to cut so that squared distances, to the old mean before and to the own mean after, are least."""
        inverse, old = np.linalg.inv(self.covariance()), np.mean(self.domain, axis=0)
        costs = []
        for cut in range(len(both) - 3):
            own = np.mean(both[cut:], axis=0)
            apart = [row - old for row in both[:cut]] + [row - own for row in both[cut:]]
            costs.append(sum(a @ inverse @ a for a in apart))
        return int(np.argmin(costs))

    def add(self, block: list[Floats]) -> None:
        if block:
            centre = np.mean(self.domain if len(self.domain) >= 64 else block, axis=0)
            self.deviations += [(1.0, row - centre) for row in block]
            self.domain += block

    def limit(self, most: float) -> None:
        share = min(1.0, most / (self.guess + sum(weight for weight, _ in self.deviations)))
        self.guess *= share
        self.deviations = [(weight * share, deviation) for weight, deviation in self.deviations]
