"""What a guard knows of the learner it watches: where to go back to, and how its signs have been lately."""

import math
from typing import Any

import torch
from torch import Tensor

from resitta.errors import BadState
from resitta.method import AdapterLike
from resitta.monitor.guard.exposure import Exposure
from resitta.monitor.guard.health_signs import HealthSigns, Window, drift, statistics, to_host
from resitta.monitor.guard.ood_filter import unknown
from resitta.monitor.guard.opinion import Opinion
from resitta.monitor.guard.settings import Guard
from resitta.monitor.guard.snapshot import History, Snapshot
from resitta.training.optimizer import Optimizer

TO_SHOW = 3
"""How many windows a collapse may take to show in the signs."""

COMPANY = 64
"""Over about how many samples the share of unknown ones is judged."""

MOSTLY = 0.5
"""The share of samples on which the source must disagree before few predicted classes count as a collapse."""


class GuardState:
    """The file of one learner, from its start on; a `state` of it can be loaded for another learner of the same kind.

    `healthy` is what to go back to where nothing is known of the state the learner is in.
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
        self.company = torch.zeros(())
        self.opinion = Opinion()
        self.exposure = Exposure()
        if state is None:
            self.history = History(adapter, trust_after, healthy)
        else:
            self.history = History.of(state["history"], trust_after)
            self.window = None if state["window"] is None else Window.of(state["window"])
            self.company = _share(state["company"])
            self.opinion = Opinion.of(state["opinion"])
            if "exposure" in state:  # files of earlier versions have none
                self.exposure = Exposure.of(state["exposure"])

    def state(self) -> dict[str, Any]:
        """Return everything that outlives a step, for `state_dict`."""
        return {
            "history": self.history.state(),
            "window": None if self.window is None else self.window.state(),
            "company": self.company,
            "opinion": self.opinion.state(),
            "exposure": self.exposure.state(),
        }

    def open(self, adapter: AdapterLike) -> None:
        """Note how things stand before a step, and stand at the door of the memory."""
        self.updates = adapter.learner.updates
        self.skipped = self._skipped()
        self.unknown: Tensor | None = None
        self.seen, self.exposed = self.company, self.exposure  # of a step that fails, these remember nothing
        self.pixels = adapter.source.pixels
        memory = adapter.learner.memory()
        if self.guard.screen and memory is not None:
            memory.screen = self.screen

    def screen(self, images: Tensor, logits: Tensor) -> Tensor:
        """Blank the logits of samples that look like nothing known, and of all while most samples do."""
        bounds = {"max_entropy": self.guard.max_sample_entropy, "min_contrast": self.guard.min_contrast}
        pixels = self.pixels(images)
        self.exposed, saturated = self.exposed.add(pixels, bound=self.guard.max_clipped)
        alone = unknown(pixels, logits.detach(), **bounds) | saturated
        self.seen = self.seen.to(logits.device).lerp(alone.float().mean(), 1 - math.exp(-len(images) / COMPANY))
        self.unknown = alone | (self.seen > 0.5)
        return logits.masked_fill(self.unknown[:, None], torch.nan)

    def snapshot(self, adapter: AdapterLike) -> Snapshot | None:
        """The state now, if the step has changed it by an update."""
        return Snapshot(adapter) if adapter.learner.updates != self.updates else None

    def signs(self, logits: Tensor, now: Snapshot | None) -> HealthSigns:
        """Take a step's predictions into the window and read all signs; samples not learned from do not count."""
        if self.window is None or len(self.window.usage) != logits.shape[1]:
            self.window = Window(logits.shape[1])
        self.company, self.exposure = self.seen, self.exposed
        known = self.known(logits)
        self.window.add(logits, known, self.guard.window)
        largest = torch.zeros((), device=logits.device) if now is None else now.largest(logits.device)
        largest = largest.masked_fill(self._skipped().to(largest.device) > self.skipped.to(largest.device), math.nan)
        return to_host(self.window, drift(self.layers, logits.device), largest, ~known)

    def known(self, logits: Tensor) -> Tensor:
        """Which samples of the step were let in."""
        if self.unknown is None:
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return ~self.unknown.to(logits.device)

    def suspects(self, signs: HealthSigns) -> bool:
        """Whether a sign is such that the source should be asked about the step's images, too."""
        return signs.entropy > self.guard.max_entropy or signs.diversity < self.guard.min_diversity

    def has_collapsed(self, signs: HealthSigns) -> tuple[bool, bool]:
        """Whether the entropy, and whether the diversity, is worse than the source's own on the same images."""
        guard, source = self.guard, self.opinion
        entropy = signs.entropy > guard.max_entropy >= source.entropy
        diversity = signs.diversity < guard.min_diversity and source.dissent > MOSTLY
        return source.formed and entropy, source.formed and diversity

    def _skipped(self) -> Tensor:
        """How many losses were not finite so far."""
        return sum((optimizer.skipped for optimizer in self.optimizers), torch.zeros(()))


def _share(value: Tensor) -> Tensor:
    """Insist on a share, from 0 to 1.

    >>> _share(torch.tensor(0.25))
    tensor(0.2500)
    """
    if value.ndim or not 0 <= value <= 1:
        raise BadState(f"a guard's share of unknown samples is {value}")
    return value.clone()
