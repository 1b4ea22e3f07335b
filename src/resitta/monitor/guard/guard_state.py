"""The guard's state for one learner: snapshots to return to, and the recent health signs."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from resitta.errors import BadState
from resitta.method import AdapterLike
from resitta.monitor.guard.exposure import Exposure
from resitta.monitor.guard.health_signs import HealthSigns, Window, drift, statistics, to_host
from resitta.monitor.guard.ood_filter import unknown
from resitta.monitor.guard.settings import Guard
from resitta.monitor.guard.snapshot import History, Snapshot
from resitta.training.entropy import entropy
from resitta.training.optimizer import Optimizer

TO_SHOW = 3
"""How many windows a collapse may take to show in the signs."""
RATE_SAMPLES = 64
"""Time constant of the unknown rate, in samples."""
SOURCE_SAMPLES = 64
"""Time constant of the comparison with the source, in samples; half as many are needed before it counts."""
MOSTLY = 0.5
"""The share of samples on which the source must disagree before few predicted classes count as a collapse."""


class Opinion:
    """Compares the source's predictions with the adapter's, as EMAs; used only while a sign exceeds its bound.

    `dissent` is the share of samples to which the source gives another label, `entropy` the mean entropy of its own
    predictions as a share of log C.
    """

    def __init__(self) -> None:
        self.weight = self.dissent = self.entropy = 0.0

    @property
    def formed(self) -> bool:
        """Whether enough samples were compared."""
        return self.weight >= SOURCE_SAMPLES / 2

    def ask(self, adapter: AdapterLike, images: Tensor, logits: Tensor, counted: Tensor) -> None:
        """Compare the predictions for those images of a batch that count."""
        with torch.no_grad():
            source = adapter.source(images)
        entropies = entropy(source.float()) / math.log(source.shape[1])
        counted = counted.to(source.device) & entropies.isfinite()
        other = counted & (source.argmax(dim=1) != logits.argmax(dim=1))
        sums = torch.stack((counted.sum(), other.sum(), entropies.masked_fill(~counted, 0).sum())).tolist()
        kept = math.exp(-sums[0] / SOURCE_SAMPLES) * self.weight
        self.weight = kept + sums[0]
        if self.weight:
            self.dissent = (kept * self.dissent + sums[1]) / self.weight
            self.entropy = (kept * self.entropy + sums[2]) / self.weight

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Restore it from its attributes."""
        opinion = cls()
        for name in vars(opinion):
            value = float(state[name])
            if not (math.isfinite(value) and value >= 0):
                raise BadState(f"the source's opinion has the {name} {value}")
            setattr(opinion, name, value)
        return opinion


class GuardState:
    """What a guard records about one learner. Its `state` can be loaded for another learner of the same kind.

    `healthy` is the snapshot to return to if nothing is known about the learner's present state.
    """

    def __init__(
        self,
        adapter: AdapterLike,
        guard: Guard,
        *,
        healthy: Snapshot | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.guard = guard
        self.layers = statistics(adapter.learner, adapter.source)
        self.optimizers = [module for module in adapter.learner.modules() if isinstance(module, Optimizer)]
        trust_after = TO_SHOW * guard.window
        self.window: Window | None = None
        self.unknown_rate = torch.zeros(())
        self.opinion = Opinion()
        self.exposure = Exposure()
        if state is None:
            self.history = History(adapter, trust_after, healthy)
        else:
            self.history = History.of(state["history"], trust_after)
            self.window = None if state["window"] is None else Window.of(state["window"])
            self.unknown_rate = _share(state["company"])
            self.opinion = Opinion.of(state["opinion"])
            if "exposure" in state:  # files of earlier versions have none
                self.exposure = Exposure.of(state["exposure"])

    def state(self) -> dict[str, Any]:
        """Return everything that outlives a step, for `state_dict`."""
        return {
            "history": self.history.state(),
            "window": None if self.window is None else self.window.state(),
            "company": self.unknown_rate,
            "opinion": dict(vars(self.opinion)),
            "exposure": self.exposure.state(),
        }

    def begin_step(self, adapter: AdapterLike) -> None:
        """Record counters before a step and install the sample filter."""
        self.updates = adapter.learner.updates
        self.skipped = self._skipped()
        self.unknown: Tensor | None = None
        self.next_rate, self.next_exposure = self.unknown_rate, self.exposure  # a step that fails leaves no trace
        self.pixels = adapter.source.pixels
        memory = adapter.learner.memory()
        if self.guard.screen and memory is not None:
            memory.screen = self.screen

    def screen(self, images: Tensor, logits: Tensor) -> Tensor:
        """Set the logits of out-of-distribution samples to NaN, and of all samples while most are."""
        pixels = self.pixels(images)
        judged = self.judge(pixels, logits, self.next_rate, self.next_exposure)
        self.unknown, self.next_rate, self.next_exposure = judged
        return logits.masked_fill(self.unknown[:, None], torch.nan)

    def judge(
        self, pixels: Tensor, logits: Tensor, rate: Tensor, exposure: Exposure
    ) -> tuple[Tensor, Tensor, Exposure]:
        """Which samples to keep out of what is learned, and the unknown rate and the exposure after them."""
        bounds = {"max_entropy": self.guard.max_sample_entropy, "min_contrast": self.guard.min_contrast}
        exposure, saturated = exposure.add(pixels, bound=self.guard.max_clipped)
        alone = unknown(pixels, logits.detach(), **bounds) | saturated
        weight = 1 - math.exp(-len(pixels) / RATE_SAMPLES)
        rate = rate.to(logits.device).lerp(alone.float().mean(), weight)
        return alone | (rate > 0.5), rate, exposure

    def signs(self, logits: Tensor, now: Snapshot | None) -> HealthSigns:
        """Add a step's predictions to the window and return all signs; samples not learned from do not count."""
        if self.window is None or len(self.window.usage) != logits.shape[1]:
            self.window = Window(logits.shape[1])
        self.unknown_rate, self.exposure = self.next_rate, self.next_exposure
        known = self.known(logits)
        self.window.add(logits, known, self.guard.window)
        largest = torch.zeros((), device=logits.device) if now is None else now.largest(logits.device)
        largest = largest.masked_fill(self._skipped().to(largest.device) > self.skipped.to(largest.device), math.nan)
        return to_host(self.window, drift(self.layers, logits.device), largest, ~known)

    def known(self, logits: Tensor) -> Tensor:
        """Which samples of the step passed the filter."""
        if self.unknown is None:
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return ~self.unknown.to(logits.device)

    def compare_with_source(self, adapter: AdapterLike, images: Tensor, logits: Tensor, signs: HealthSigns) -> None:
        """Let the source predict the step's images, too, while the signs say collapse; it costs a forward pass."""
        collapsed = signs.entropy > self.guard.max_entropy or signs.diversity < self.guard.min_diversity
        if adapter.learner.updates and collapsed:
            self.opinion.ask(adapter, images, logits, self.known(logits))
        elif self.opinion.weight:
            self.opinion = Opinion()

    def has_collapsed(self, signs: HealthSigns) -> tuple[bool, bool]:
        """Whether the entropy, and whether the diversity, is worse than the source's own on the same images."""
        guard, source = self.guard, self.opinion
        uncertain = signs.entropy > guard.max_entropy >= source.entropy
        monotonous = signs.diversity < guard.min_diversity and source.dissent > MOSTLY
        return source.formed and uncertain, source.formed and monotonous

    def _skipped(self) -> Tensor:
        """How many losses were not finite so far."""
        return sum((optimizer.skipped for optimizer in self.optimizers), torch.zeros(()))


def _share(value: Tensor) -> Tensor:
    if value.ndim or not 0 <= value <= 1:
        raise BadState(f"a guard's share of unknown samples is {value}")
    return value.clone()
