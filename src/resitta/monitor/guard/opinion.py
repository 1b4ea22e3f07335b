"""A second opinion: what the source model says of the samples on which an adapter looks collapsed."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from resitta.errors import BadState
from resitta.method import AdapterLike
from resitta.training.entropy import entropy

SPAN = 64
"""Over about how many samples the source is asked, exponentially weighted."""
ENOUGH = SPAN / 2
"""How many samples, so weighted, make an opinion: one image is no evidence."""


class Opinion:
    """How the source's predictions compare with the adapter's; asked for only while a sign is beyond its bound.

    `dissent` is the share of samples to which the source gives another label, `entropy` the mean entropy of its own
    predictions as a share of log C.

    >>> opinion = Opinion()
    >>> opinion.formed
    False
    """

    def __init__(self) -> None:
        self.weight = self.dissent = self.entropy = 0.0

    @property
    def formed(self) -> bool:
        """Whether the source was asked about enough samples."""
        return self.weight >= ENOUGH

    def ask(self, adapter: AdapterLike, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """Take in what the source says of those images of a batch that count."""
        with torch.no_grad():
            source = adapter.source(images)
        entropies = entropy(source.float()) / math.log(source.shape[1])
        counted = counted.to(source.device) & entropies.isfinite()
        other = counted & (source.argmax(dim=1) != logits.argmax(dim=1))
        sums = torch.stack((counted.sum(), other.sum(), entropies.masked_fill(~counted, 0).sum())).tolist()
        self._add(*sums)

    def _add(self, number: float, dissenting: float, uncertainty: float) -> None:
        kept = math.exp(-number / SPAN) * self.weight
        total = kept + number
        if total:
            self.dissent = (kept * self.dissent + dissenting) / total
            self.entropy = (kept * self.entropy + uncertainty) / total
        self.weight = total

    def state(self) -> dict[str, Any]:
        """Return it for `state_dict`."""
        return dict(vars(self))

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Undo `state`."""
        opinion = cls()
        for name in vars(opinion):
            value = float(state[name])
            if not (math.isfinite(value) and value >= 0):
                raise BadState(f"the source's opinion has the {name} {value}")
            setattr(opinion, name, value)
        return opinion
