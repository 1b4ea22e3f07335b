"""How much of a stream's images is clipped to black or white, compared with its usual level."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from resitta.errors import BadState

RECENT, USUAL = 64, 3000
"""Time constants of the present and of the usual level, in samples: what lasts longer is a domain of its own."""
ABOVE = 0.25
"""By how much the present level must exceed the usual one."""


@dataclass(frozen=True, eq=False)
class Exposure:
    """EMAs of the shares of black and of white pixels, over a short and a long time. `add` returns a new record.

    Single images of a healthy stream may be mostly white: the sky, snow, a digit's paper. So an image counts as
    saturated only while the whole stream is brighter, or darker, than usual.

    >>> exposure, ramp = Exposure(), torch.linspace(0, 1, 32).expand(640, 3, 32, 32)
    >>> exposure, saturated = exposure.add(ramp, bound=0.3)
    >>> saturated.any().item()
    False
    >>> exposure, saturated = exposure.add((ramp + 0.9).clamp(max=1)[:64], bound=0.3)
    >>> saturated.all().item(), [round(share, 2) for share in exposure.level.tolist()]
    (True, [0.01, 0.58])
    """

    level: Tensor = field(default_factory=partial(torch.zeros, 2))
    usual: Tensor = field(default_factory=partial(torch.zeros, 2))
    samples: int = 0

    def add(self, images: Tensor, *, bound: float) -> tuple[Self, Tensor]:
        """Add images in [0, 1]; return which are clipped by more than `bound` while the stream is, too."""
        shares = clipped_shares(images)
        mean, level, usual = shares.mean(dim=0), self.level.to(shares), self.usual.to(shares)
        level = level.lerp(mean, self._rate(len(images), RECENT))
        usual = usual.lerp(mean, self._rate(len(images), USUAL))
        unusual = level > (usual + ABOVE).clamp(min=bound)
        return type(self)(level, usual, self.samples + len(images)), ((shares > bound) & unusual).any(dim=1)

    def _rate(self, images: int, length: int) -> float:
        """The weight of new images: at first the plain mean of all, later the EMA over about `length`."""
        return max(-math.expm1(-images / length), images / (self.samples + images))

    def state(self) -> dict[str, Any]:
        """Return it for `state_dict`; the tensors are never written to."""
        return dict(vars(self))

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Undo `state`."""
        level, usual, samples = state["level"], state["usual"], state["samples"]
        for shares in (level, usual):
            if shares.shape != (2,) or not ((shares >= 0) & (shares <= 1)).all():
                raise BadState(f"a guard's shares of clipped pixels are {shares}")
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 0:
            raise BadState(f"a guard has seen the exposure of {samples!r} samples")
        return cls(level.clone(), usual.clone(), samples)


def clipped_shares(images: Tensor) -> Tensor:
    """The shares of black and of white values of each image in [0, 1]: N×2.

    >>> clipped_shares(torch.tensor([0.0, 0.5, 1.0, 1.0]).view(1, 1, 2, 2))
    tensor([[0.2500, 0.5000]])
    """
    return torch.stack([(end < 1.5 / 255).float().mean(dim=(1, 2, 3)) for end in (images, 1 - images)], dim=1)
