"""CMF: ROID whose weights follow a hidden source model, estimated by a Kalman filter (Lee and Chang, ICLR 2024)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from resitta.method import Learner, register
from resitta.methods.roid import ROIDLearner, WeightedSelfTraining
from resitta.settings import setting
from resitta.training.network import Network
from resitta.training.self_training import Anchor

LEAST_GAIN = 0.89
"""Below it the filter would take over the trained weights too fast."""
CERTAIN = 0.9999
"""From here on the hidden model ignores the trained weights."""
REFERENCE = 38_400
"""The parameters of ViT-B/16's LayerNorm, for which q is given."""


@register("cmf")
@dataclass(frozen=True, kw_only=True)
class CMF(WeightedSelfTraining):
    """ROID with a Kalman filter: the weights are pulled to a hidden model between them and the source.

    Settings as its authors' code has them; losses, sample weights, windows and prior correction are ROID's.
    """

    title: ClassVar[str] = "CMF"
    paper: ClassVar[str] = (
        "Lee, Chang. Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation. ICLR 2024."
    )

    alpha: float = setting(0.99, at_least=0, at_most=1, doc="α, weight of the hidden model beside the source")
    gamma: float = setting(0.99, at_least=0, at_most=1, doc="γ, weight of the trained weights beside the hidden ones")
    q: float = setting(0.005, above=0, doc="q, variance of the hidden model's steps, for 38,400 trained parameters")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        ensemble = partial(MomentumFilter, alpha=self.alpha, gamma=self.gamma, q=self.q)
        return ROIDLearner(self, network, generator, ensemble)


def gain(variance: float, q: float) -> float:
    """β = r / (v + r) with r = 1 - q, at least .89, and 1 from .9999 on: the hidden model's share in its update.

    >>> gain(0.0, 0.005), round(gain(0.05, 0.005), 4), gain(0.5, 0.005)
    (1.0, 0.9522, 0.89)
    """
    share = max(LEAST_GAIN, (1 - q) / (variance + 1 - q))
    return 1.0 if share >= CERTAIN else share


class MomentumFilter(nn.Module):
    """The hidden model θ_h, its variance v, and the ensemble with it.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> ensemble = MomentumFilter([weight], alpha=0.5, gamma=0.75, q=0.1 * REFERENCE)
    >>> _ = weight.data.fill_(2.0)
    >>> ensemble([weight])  # v = .1, β = .9: θ_h = 1.1
    >>> round(weight.item(), 4)  # .75 · 2 + .25 · 1.1
    1.775
    """

    def __init__(self, parameters: Iterable[Tensor], alpha: float, gamma: float, q: float) -> None:
        super().__init__()
        start = [parameter.detach() for parameter in parameters]
        for number, value in enumerate(start):
            precision = torch.promote_types(value.dtype, torch.float32)
            self.register_buffer(f"hidden_{number}", value.to(precision, copy=True))
        self.source = Anchor(self.hidden, 1 - alpha)
        self.alpha, self.gamma, self.q = alpha, gamma, q * sum(value.numel() for value in start) / REFERENCE
        self.variance = 0.0

    @property
    def hidden(self) -> list[Tensor]:
        """θ_h, in the order of the parameters."""
        return list(self._buffers.values())  # type: ignore[arg-type]

    @torch.no_grad()
    def forward(self, parameters: Iterable[Tensor]) -> None:
        """Predict, update, ensemble; θ and θ_h change in place."""
        hidden, trained = self.hidden, list(parameters)
        if not hidden:
            return
        self.source(hidden)  # θ_h <- α θ_h + (1-α) θ_s
        self.variance = self.alpha**2 * self.variance + self.q
        share = gain(self.variance, self.q)
        self.variance *= share
        values = [value.to(own.dtype) for value, own in zip(trained, hidden, strict=True)]
        torch._foreach_lerp_(hidden, values, 1 - share)  # θ_h <- β θ_h + (1-β) θ
        values = [own.to(value.dtype) for value, own in zip(trained, hidden, strict=True)]
        torch._foreach_lerp_(trained, values, 1 - self.gamma)  # θ <- γ θ + (1-γ) θ_h

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert; θ_h stays in float32 at least: it would lose small steps."""

        def kept(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved.to(torch.promote_types(moved.dtype, torch.float32))

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def get_extra_state(self) -> dict[str, Any]:
        """Return the variance."""
        return {"variance": self.variance}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.variance = state["variance"]
