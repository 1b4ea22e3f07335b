"""The health signs of an adapter, computed on its device and copied to the host once per step."""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from resitta.errors import BadState
from resitta.method import Learner
from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, bn_layers
from resitta.training.entropy import entropy
from resitta.training.network import Network

Statistics = list[tuple[AdaptiveBN, BatchNorm]]


@dataclass(frozen=True)
class HealthSigns:
    """The signs after one step; see `Guard` for the units. `largest` is the largest magnitude in the state."""

    diversity: float
    entropy: float
    drift: float
    largest: float
    unknown: int


class Window:
    """EMAs of the predicted labels and entropies, with healthy initial values.

    >>> window = Window(classes=2)
    >>> window.add(torch.tensor([[9.0, 0.0]]), torch.tensor([True]), length=1)
    >>> 1 < float(window.diversity()) < 2
    True
    """

    def __init__(self, classes: int) -> None:
        self.usage = torch.full((classes,), 1 / classes)
        self.entropy = torch.zeros(())

    def add(self, logits: Tensor, counted: Tensor, length: int) -> None:
        """Update the EMAs with the weight 1 - e^(-n/length), where n samples of the batch count."""
        entropies = entropy(logits.float())
        weights = (counted & entropies.isfinite()).float()
        total = weights.sum()
        share = -torch.expm1(-total / length)
        weights = weights / total.clamp(min=1)
        used = weights.new_zeros(len(self.usage)).scatter_add_(0, logits.argmax(dim=1), weights)
        uncertainty = (entropies.nan_to_num() * weights).sum() / math.log(len(used))
        self.usage = self.usage.to(used).lerp(used, share)
        self.entropy = self.entropy.to(used).lerp(uncertainty, share)

    def diversity(self) -> Tensor:
        """The effective number of classes, exp H(usage)."""
        log_usage = self.usage.log().clamp(min=torch.finfo(self.usage.dtype).min)
        return (-(self.usage * log_usage).sum()).exp()

    def state(self) -> dict[str, Any]:
        """Return it for `state_dict`; `add` replaces the tensors and writes to none."""
        return {"usage": self.usage, "entropy": self.entropy}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Undo `state`."""
        usage, uncertainty = state["usage"], state["entropy"]
        if usage.ndim != 1 or not len(usage) or uncertainty.ndim:
            raise BadState(f"a guard's window has the shapes {tuple(usage.shape)} and {tuple(uncertainty.shape)}")
        if not (usage >= 0).all() or not usage.isfinite().all() or not 0 <= uncertainty < torch.inf:
            raise BadState("a guard's window holds shares that are negative or not finite")
        window = cls(len(usage))
        window.usage, window.entropy = usage.clone(), uncertainty.clone()
        return window


def statistics(learner: Learner, source: Network) -> Statistics:
    """Pair every layer that keeps statistics, of every network of the learner, with the source's layer."""
    origin = dict(bn_layers(source.model))
    networks = [module.model for module in learner.modules() if isinstance(module, Network)]
    layers = [named for network in networks for named in network.named_modules()]
    kept = [(name, m) for name, m in layers if isinstance(m, AdaptiveBN) and m.statistics() is not None]
    return [(layer, origin[name]) for name, layer in kept]


def drift(layers: Statistics, device: torch.device) -> Tensor:
    """The distance of the statistics from the source's, in units of the source's spread, mean over the layers.

    >>> from resitta.norm.resibn import ResiBN
    >>> moved = ResiBN(torch.nn.BatchNorm1d(1), nu_b=0.5)
    >>> moved.layer.running_mean = torch.tensor([2.0])
    >>> drift([(moved, torch.nn.BatchNorm1d(1))], torch.device("cpu"))
    tensor(2.)
    """
    if not layers:
        return torch.zeros((), device=device)
    means, variances = zip(*[layer.statistics() or () for layer, _ in layers], strict=True)
    source_means = [layer.running_mean.float() for _, layer in layers if layer.running_mean is not None]
    source_spreads = [layer.running_var.float().sqrt() for _, layer in layers if layer.running_var is not None]
    shifts = torch._foreach_norm(torch._foreach_sub(means, source_means))
    stretches = torch._foreach_norm(torch._foreach_sub(torch._foreach_sqrt(variances), source_spreads))
    units = torch.stack(torch._foreach_norm(source_spreads)).clamp(min=torch.finfo(torch.float32).tiny)
    return (torch.hypot(torch.stack(shifts), torch.stack(stretches)) / units).mean().float()


def to_host(window: Window, moved: Tensor, largest: Tensor, unknown: Tensor) -> HealthSigns:
    """Copy all signs at once."""
    signs = (window.diversity(), window.entropy, moved, largest, unknown.sum().float())
    diversity, uncertainty, distance, magnitude, count = torch.stack(signs).tolist()
    return HealthSigns(diversity, uncertainty, distance, magnitude, int(count))
