"""A label prior in time: neighbours in a stream often share a class, and that says much about the next image.

`resitta.training.temporal_filter` has the mathematics.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resitta.errors import BadState
from resitta.training.temporal_filter import (
    BLOCK,
    CHAINS,
    TEMPERATURES,
    TRUST,
    Floats,
    TemporalFilter,
    mixed,
    smoothed,
    softmax,
)

Lookahead = Literal["none", "batch"]
"""Whether a prediction may use the samples that follow it in its batch."""


@dataclass(frozen=True)
class LabelPriorStats:
    """How much a label prior intervenes: over `samples`, how many were corrected, and how many got another label.

    `on` tells whether it corrects at present. `stay` is the probability with which the present mixture of experts
    expects the next sample to be of the same class because the last was.
    """

    samples: int
    corrected: int
    relabelled: int
    on: bool
    stay: float


class TemporalPrior(nn.Module):
    """Corrects logits by what the samples before them tell, and learns from them whether and how far that reaches.

    >>> prior, generator = TemporalPrior(), torch.Generator().manual_seed(0)
    >>> labels = torch.arange(1000) // 100 % 5  # runs of a hundred
    >>> logits = 2 * nn.functional.one_hot(labels, 5) + torch.randn(1000, 5, generator=generator)
    >>> corrected = torch.cat([prior(batch) for batch in logits.split(64)])
    >>> [round(float((found.argmax(1) != labels).float().mean()), 2) for found in (logits, corrected)]
    [0.21, 0.08]
    """

    def __init__(self, *, lookahead: Lookahead = "none") -> None:
        super().__init__()
        self.lookahead = lookahead
        self._filter: TemporalFilter | None = None
        self._lock = threading.Lock()  # predictions may come from another thread than the one that saves

    def forward(self, logits: Tensor) -> Tensor:
        """Return the corrected logits, log p(class | this image and those before it), and learn from the batch."""
        with self._lock:
            return self._forward(logits)

    def _forward(self, logits: Tensor) -> Tensor:
        rows = logits.detach().double().cpu().numpy()
        usable: NDArray[np.bool_] = np.asarray(np.isfinite(rows.max(axis=1, initial=-np.inf)))
        if self._filter is None or self._filter.base.shape[-1:] != rows.shape[1:]:
            self._filter = TemporalFilter.begin(rows.shape[1])
        found = self._correct(self._filter, rows[usable])
        corrected: NDArray[np.bool_] = np.asarray(np.isfinite(found[:, 0]))
        self._filter.corrected += int(corrected.sum())
        self._filter.relabelled += int((found.argmax(1) != rows[usable].argmax(1))[corrected].sum())
        if not corrected.any():
            return logits
        places = torch.from_numpy(np.flatnonzero(usable)[corrected]).to(logits.device)
        return logits.index_copy(0, places, torch.from_numpy(found[corrected]).to(logits))

    def peek(self, logits: Tensor) -> Tensor:
        """Return the corrected logits and learn nothing."""
        with self._lock:
            before = None if self._filter is None else self._filter.copy()
            try:
                return self._forward(logits)
            finally:
                self._filter = before

    def _correct(self, state: TemporalFilter, rows: Floats) -> Floats:
        """The log posterior of each sample; NaN where no expert speaks."""
        p = softmax(rows[:, None] / np.array(TEMPERATURES)[:, None])
        found, parts, start = np.empty_like(rows), [], 0
        while start < len(p):
            stop = min(len(p), start + BLOCK - state.samples % BLOCK)
            outputs = p[start:stop, state.temperature]
            parts.append((outputs, *state.take(p[start:stop])))
            if self.lookahead == "none":
                _, _, posteriors, weights = parts.pop()
                found[start:stop] = mixed(outputs, posteriors, weights)
            start = stop
        if parts:
            outputs, likelihoods, posteriors, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
            posteriors[:, :CHAINS] = smoothed(posteriors[:, :CHAINS], likelihoods[:, :CHAINS])
            found[:] = mixed(outputs, posteriors, weights)
        return found

    @property
    def on(self) -> bool:
        """Whether any expert has a say at present."""
        return self._filter is not None and bool(self._filter.speaks[self._filter.temperature].any())

    @property
    def stats(self) -> LabelPriorStats:
        """How much it intervenes."""
        state = self._filter or TemporalFilter.begin(2)
        weights = state.weights(state.strength)[state.temperature, :CHAINS]
        stay = float(weights @ TRUST[:CHAINS, 0])
        return LabelPriorStats(state.samples, state.corrected, state.relabelled, self.on, round(stay, 4))

    @contextmanager
    def unless_complete(self) -> Iterator[None]:
        """Undo what was learned if the block raises."""
        before = None if self._filter is None else self._filter.copy()
        try:
            yield
        except BaseException:
            self._filter = before
            raise

    def get_extra_state(self) -> dict[str, Any]:
        """Return everything it remembers, for `state_dict`."""
        with self._lock:
            kept = {} if self._filter is None else vars(self._filter.copy())
        return {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in kept.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        loaded = _loaded(state) if state else None
        with self._lock:
            self._filter = loaded

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle everything but the lock."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_lock": threading.Lock()})  # type: ignore[no-untyped-call]


def _loaded(state: dict[str, Any]) -> TemporalFilter:
    """Make a filter of its saved values; refuse those that have other shapes or are not finite."""
    values: dict[str, Any] = {k: v.cpu().numpy().copy() if isinstance(v, Tensor) else v for k, v in state.items()}
    fresh = vars(TemporalFilter.begin((*np.shape(values.get("base", 0)), 1)[-2]))
    for name, like in fresh.items():
        shape, own = np.shape(values.get(name, 0)), np.shape(like)
        if shape[-1:] != own[-1:] or len(shape) != len(own) or not np.isfinite(values[name]).all():
            raise BadState(f"{name} of the label prior must be finite, of shape {own}, found shape {shape}")
    return TemporalFilter(**values)
