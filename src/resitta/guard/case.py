"""What a guard knows of the learner it watches: where to go back to, and how its signs have been lately."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from resitta.components.optimizer import Adam
from resitta.guard.screen import unknown
from resitta.guard.settings import Guard
from resitta.guard.signs import Signs, Window, drift, statistics, to_host
from resitta.guard.snapshot import History, Snapshot

if TYPE_CHECKING:
    from resitta.adapter import Adapter

TO_SHOW = 3
"""How many windows a collapse may take to show in the signs."""

COMPANY = 64
"""Over about how many samples the share of unknown ones is judged."""


class Case:
    """The file of one learner, from its start or its loading on."""

    def __init__(self, adapter: "Adapter", guard: Guard) -> None:
        self.guard = guard
        self.history = History(adapter, trust_after=TO_SHOW * guard.window)
        self.layers = statistics(adapter.learner, adapter.source)
        self.optimizers = [module for module in adapter.learner.modules() if isinstance(module, Adam)]
        self.window: Window | None = None
        self.company = torch.zeros(())
        self._before: Tensor | None = None
        """The company before a step that has not ended."""

    def open(self, adapter: "Adapter") -> None:
        """Note how things stand before a step, and stand at the door of the memory."""
        if self._before is not None:  # the last step failed
            self.company = self._before
        self._before = self.company
        self.updates = adapter.learner.updates
        self.skipped = self._skipped()
        self.unknown: Tensor | None = None
        self.pixels = adapter.source.pixels
        memory = adapter.learner.memory()
        if self.guard.screen and memory is not None:
            memory.screen = self.screen

    def screen(self, images: Tensor, logits: Tensor) -> Tensor:
        """Blank the logits of samples that look like nothing known, and of all while most samples do."""
        bounds = {"max_entropy": self.guard.max_sample_entropy, "min_contrast": self.guard.min_contrast}
        alone = unknown(self.pixels(images), logits.detach(), **bounds)
        self.company = self.company.to(logits.device).lerp(alone.float().mean(), 1 - math.exp(-len(images) / COMPANY))
        self.unknown = alone | (self.company > 0.5)
        return logits.masked_fill(self.unknown[:, None], torch.nan)

    def snapshot(self, adapter: "Adapter") -> Snapshot | None:
        """The state now, if the step has changed it by an update."""
        return Snapshot(adapter) if adapter.learner.updates != self.updates else None

    def signs(self, logits: Tensor, now: Snapshot | None) -> Signs:
        """Take a step's predictions into the window and read all signs; samples not learned from do not count."""
        self._before = None
        if self.window is None:
            self.window = Window(logits.shape[1])
        unknown = torch.zeros(len(logits), dtype=torch.bool) if self.unknown is None else self.unknown
        unknown = unknown.to(logits.device)
        self.window.add(logits, ~unknown, self.guard.window)
        largest = torch.zeros((), device=logits.device) if now is None else now.largest(logits.device)
        largest = largest.masked_fill(self._skipped().to(largest.device) > self.skipped.to(largest.device), math.nan)
        return to_host(self.window, drift(self.layers, logits.device), largest, unknown)

    def _skipped(self) -> Tensor:
        """How many losses were not finite so far."""
        return sum((optimizer.skipped for optimizer in self.optimizers), torch.zeros(()))
