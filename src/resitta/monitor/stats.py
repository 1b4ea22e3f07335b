"""The statistics of an adapter: one frozen record."""

from dataclasses import dataclass

from torch import nn

from resitta.memory.memory import Memory
from resitta.method import AdapterLike
from resitta.monitor.guard.health_signs import drift, statistics
from resitta.monitor.shadow.records import ShadowStats
from resitta.norm.bn_layers import AdaptiveBN, bn_layers
from resitta.norm.resibn import wasserstein
from resitta.training.label_prior import LabelPriorStats
from resitta.training.network import Network


@dataclass(frozen=True)
class BankStats:
    """The contents of the memory of samples."""

    occupancy: int
    capacity: int
    per_class: tuple[int, ...]
    mean_entropy: float
    mean_age: float


@dataclass(frozen=True)
class Stats:
    """The state of an adapter: counters, the memory, and how far the statistics are from the source.

    `mean_entropy` is the mean over all predictions learned from so far. `drift` holds the Wasserstein distance W₂
    between each BatchNorm layer's statistics and the source's; it is empty for methods without statistics of their own.
    `relative_drift` is what `Guard.max_drift` bounds: the mean over the layers of all networks, in units of the
    source's spread. `label_prior` tells how much the label prior intervenes, if there is one; `shadow` how the answers
    compare with the source's, with `shadow=`.
    """

    samples: int
    updates: int
    mean_entropy: float
    bank: BankStats | None
    drift: dict[str, float]
    relative_drift: float = 0.0
    label_prior: LabelPriorStats | None = None
    shadow: ShadowStats | None = None

    @property
    def mean_drift(self) -> float:
        """The mean of `drift` over the layers."""
        return sum(self.drift.values()) / max(1, len(self.drift))


def stats_of(adapter: AdapterLike) -> Stats:
    """Describe an adapter."""
    memory = adapter.learner.memory()
    networks = (module for module in adapter.learner.modules() if isinstance(module, Network))
    network = adapter.learner.exportable_network() or next(networks)
    return Stats(
        samples=adapter.samples,
        updates=adapter.learner.updates,
        mean_entropy=adapter.mean_entropy,
        bank=None if memory is None else bank_stats(memory),
        drift=wasserstein_drift(network.model, adapter.source.model),
        relative_drift=float(drift(statistics(adapter.learner, adapter.source), adapter.source.device)),
        label_prior=None if adapter.prior is None else adapter.prior.stats,
        shadow=None if adapter.shadow is None else adapter.shadow.stats,
    )


def bank_stats(memory: Memory) -> BankStats:
    """Describe a memory."""
    return BankStats(
        occupancy=memory.size,
        capacity=memory.capacity,
        per_class=tuple(memory.counts.tolist()),
        mean_entropy=float(memory.entropies.mean()) if memory.size else 0.0,
        mean_age=float(memory.ages.mean()) if memory.size else 0.0,
    )


def wasserstein_drift(adapted: nn.Module, source: nn.Module) -> dict[str, float]:
    """W₂ of every wrapped layer of a network to the source's layer of the same name."""
    origin = dict(bn_layers(source))
    distances: dict[str, float] = {}
    for name, layer in adapted.named_modules():
        if isinstance(layer, AdaptiveBN) and (statistics := layer.statistics()) is not None:
            mean, var = origin[name].running_mean, origin[name].running_var
            if mean is not None and var is not None:
                distances[name] = float(wasserstein(*statistics, mean, var))
    return distances
