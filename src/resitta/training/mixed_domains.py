"""Streams in which many domains come at once: groups of images whose signatures are alike.

Within a domain the signatures of images form one cloud. Noise, blur and fog side by side form several, each much
tighter than the whole: groups then explain more of the variance than they do of a normal distribution with the same
covariance.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resitta.errors import BadState
from resitta.norm.bn_layers import in_float32_at_least
from resitta.training.image_signature import NUMBERS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LOOK = 512
"""How many images without a change of domain are looked at together, after so many, twice as many, and so on."""
TIGHT = 0.88
"""Groups count as real if what they leave unexplained is less than this share of what they leave of a normal cloud."""
TOGETHER = 1.5
"""Groups are domains at once only if neighbours share theirs hardly more often than by chance."""
ROUNDS, STARTS = 12, 2


def k_means(rows: Floats, k: int, seed: int = 0) -> tuple[Floats, Ints, float]:
    """The centres of k groups, the group of each row, and the variance that is left; the best of a few starts.

    >>> rows = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> centres, groups, left = k_means(rows, 2)
    >>> sorted(centres.ravel().round(2).tolist()), bool(groups[0] == groups[1]), round(left, 4)
    ([0.05, 5.05], True, 0.0025)
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(STARTS):
        centres = rows[rng.choice(len(rows), k, replace=False)]
        for _ in range(ROUNDS):
            squares = ((rows[:, None] - centres) ** 2).sum(axis=-1)
            groups = squares.argmin(axis=1)
            centres = np.stack(
                [rows[groups == g].mean(axis=0) if (groups == g).any() else centres[g] for g in range(k)]
            )
        found.append((centres, groups, float(squares.min(axis=1).mean())))
    return min(found, key=lambda each: each[2])


def left_of_normal(rows: Floats, k: int, seed: int = 1) -> float:
    """What k groups leave unexplained of a normal cloud with the mean and covariance of the rows."""
    covariance = np.cov(rows.T).reshape(rows.shape[1], -1)
    cloud = np.random.default_rng(seed).multivariate_normal(rows.mean(axis=0), covariance, len(rows))
    return k_means(cloud, k)[2]


def are_mixed(groups: Ints) -> bool:
    """Whether neighbours share their group hardly more often than by chance.

    >>> are_mixed(np.array([0, 1, 0, 1, 1, 0, 0, 1])), are_mixed(np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    (True, False)
    """
    shares = np.bincount(groups) / len(groups)
    return bool((groups[1:] == groups[:-1]).mean() < TOGETHER * (shares**2).sum())


class MixedDomains(nn.Module):
    """Finds out whether images of several domains come side by side, and tells which group an image belongs to.

    >>> rng, mixed = np.random.default_rng(0), MixedDomains(groups=2)
    >>> noisy = rng.normal(0, 0.1, (512, 9)) + rng.integers(0, 2, (512, 1))
    >>> mixed(noisy), mixed.on, mixed.group_of(torch.tensor([[0.0] * 9, [1.0] * 9])).unique().numel()
    (True, True, 2)
    """

    centres: Tensor
    scale: Tensor

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.on = False
        self.latest: Floats = np.empty((0, NUMBERS))
        self.since, self.due = 0, LOOK
        self.register_buffer("centres", torch.zeros(groups, NUMBERS))
        self.register_buffer("scale", torch.ones(NUMBERS))

    def forward(self, signatures: Floats) -> bool:
        """Take the next signatures of a domain; return whether it turned out to be several at once, or one again."""
        if not self.groups:
            return False
        self.latest = np.concatenate((self.latest, signatures[np.isfinite(signatures).all(axis=1)]))[-LOOK:]
        self.since += len(signatures)
        if self.since < self.due:
            return False
        self.due, before = 2 * self.due, self.on
        self._look()
        return self.on != before

    def restart(self) -> None:
        """Another domain has begun."""
        self.on, self.since, self.due, self.latest = False, 0, LOOK, np.empty((0, NUMBERS))

    def group_of(self, signatures: Tensor) -> Tensor:
        """The group of each image, from signatures on any device."""
        return torch.cdist(signatures.to(self.centres) / self.scale, self.centres).argmin(dim=1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, to float32 instead of less: signatures near a border would change their group."""
        return super()._apply(in_float32_at_least(fn), recurse)  # type: ignore[no-untyped-call,no-any-return]

    def _look(self) -> None:
        """Decide whether the latest signatures form groups; present groups stay as they are."""
        scale = np.maximum(self.latest.std(axis=0), 1e-3)
        rows = self.latest / scale
        centres, groups, left = k_means(rows, self.groups)
        on = are_mixed(groups) and left < TIGHT * left_of_normal(rows, self.groups)
        if on and not self.on:
            self.centres.copy_(torch.from_numpy(centres))
            self.scale.copy_(torch.from_numpy(scale))
        self.on = on

    def get_extra_state(self) -> dict[str, Any]:
        """Return what is on the host, for `state_dict`."""
        return {"latest": torch.from_numpy(self.latest.copy()), "since": self.since, "due": self.due, "on": self.on}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        if state["latest"].shape[1:] != (NUMBERS,):
            raise BadState(f"the state holds signatures of shape {tuple(state['latest'].shape)}, expected N×{NUMBERS}")
        self.latest, self.on = state["latest"].cpu().numpy().copy(), bool(state["on"])
        self.since, self.due = int(state["since"]), int(state["due"])
