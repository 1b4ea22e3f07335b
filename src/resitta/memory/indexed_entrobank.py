"""EntroBank for large and busy banks: the same decisions, without looking at every sample for each."""

import math
from typing import Any

from torch import Tensor

from resitta.memory.bank_index import BankIndex, Outlook
from resitta.memory.entrobank import EntroBank


class Found:
    """What the index said last; it stays valid until a sample comes or goes."""

    __slots__ = ("oldest", "outlook")

    def __init__(self) -> None:
        self.oldest: tuple[int, int] | None = None
        self.outlook: Outlook | None = None


class IndexedEntroBank(EntroBank):
    """Decides exactly as `EntroBank`; the cost of one sample does not grow with the capacity.

    >>> import numpy as np, torch
    >>> bank = IndexedEntroBank(2, generator=torch.Generator())
    >>> bank.add(torch.rand(3, 3, 4, 4), np.array([0, 0, 1]), np.array([0.9, 0.5, 0.7]))
    >>> sorted(bank.entropies.tolist())
    [0.5, 0.7]
    """

    def __init__(self, capacity: int, **rules: Any) -> None:
        super().__init__(capacity, **rules)
        self._reindex()

    def admit(self, label: int, entropy: float) -> int | None:
        """Decide by the index."""
        return self._leaving(entropy) if self.size == self.capacity else self.size

    def put(self, slot: int, label: int, entropy: float, birth: int) -> None:
        """Note the sample, and keep the index up to date."""
        super().put(slot, label, entropy, birth)
        self.index.put(slot, label, birth, entropy)
        self.found.oldest = self.found.outlook = None

    def _leaving(self, entropy: float) -> int | None:
        """Algorithm 1, lines 9 to 23."""
        if not self.compare_uncertainty:  # chance picks among all dominant samples: the plain way is as good
            return super().admit(-1, entropy)
        found, clock = self.found, self.clock
        if self.forget_age is not None:
            if found.oldest is None:
                found.oldest = self.index.dominant().oldest()
            if clock - found.oldest[0] >= self.forget_age:
                return found.oldest[1]
        mature_by = -math.inf if self.mature_age is None else clock - self.mature_age
        outlook = found.outlook
        if outlook is None or outlook.next_mature <= mature_by:
            outlook = found.outlook = self.index.dominant().outlook(mature_by)
        if outlook.overconfident is not None:
            return outlook.overconfident
        return outlook.highest if entropy < outlook.highest_entropy else None

    def forget_before(self, birth: int) -> None:
        """Let samples go; the index follows."""
        super().forget_before(birth)
        self._reindex()

    def rescore(self, logits: Tensor) -> None:
        """Replace labels and entropies, and with them the index."""
        super().rescore(logits)
        self._reindex()

    def bring_back(self, kept: dict[str, Any]) -> None:
        """Undo what was added; the index follows."""
        super().bring_back(kept)
        self._reindex()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take everything back from a `state_dict`; the index follows from it."""
        super().set_extra_state(state)
        self._reindex()

    def _reindex(self) -> None:
        self.index, self.found = BankIndex(self.capacity), Found()
        for slot in self.births[: self.size].argsort().tolist():
            label, birth, entropy = self.all_labels[slot], self.births[slot], self.all_entropies[slot]
            self.index.put(slot, int(label), int(birth), float(entropy))
