"""A label prior in time: neighbours in a stream often share a class, and that says much about the next image.

`resitta.training.temporal_filter` has the mathematics.
"""

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from resitta.errors import BadState
from resitta.training.temporal_filter import (
    BLOCK,
    CHAINS,
    TRUST,
    Bools,
    Floats,
    TemporalFilter,
    mixed,
    outputs_of,
    smoothed,
    weights_of,
)

if TYPE_CHECKING:
    from resitta.training.device_filter import DeviceFilter

logger = logging.getLogger(__name__)
MOST_CLASSES = 1024
"""With more classes, the filter runs on the host."""
Lookahead = Literal["none", "batch"]
"""Whether a prediction may use the samples that follow it in its batch."""


@dataclass(frozen=True)
class LabelPriorStats:
    """How much a label prior intervenes: over `samples`, how many were corrected, and how many got another label.

    Nothing was learned from the `skipped` ones: they repeat the one before, or a guard rejects them. `on` tells whether
    it corrects at present. `stay` is the probability with which the present mixture of experts expects the next sample
    to be of the same class because the last was.
    """

    samples: int
    corrected: int
    relabelled: int
    skipped: int
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
        self._filter: TemporalFilter | DeviceFilter | None = None
        self._report = _Report()
        self._lock = threading.Lock()  # predictions may come from another thread than the one that saves

    def forward(self, logits: Tensor, known: Tensor | None = None) -> Tensor:
        """Return the corrected logits, log p(class | this image and those before it), and learn from the batch.

        Nothing is learned from samples that repeat the one before, nor from those that are not `known` (default: all
        are). They are corrected by what is known at that point.
        """
        with self._lock:
            return self._forward(logits, known)

    def _forward(self, logits: Tensor, known: Tensor | None = None) -> Tensor:
        device = device_filter(logits.device) if logits.is_cuda and self.lookahead == "none" else None
        if device is None or not 2 <= logits.shape[1] <= MOST_CLASSES or not len(logits):
            return self._on_host(logits, known)
        state = self._filter
        if not isinstance(state, device) or (state.last.device, len(state.last)) != (logits.device, logits.shape[1]):
            before = self._state()
            fits = before is not None and len(before.last) == logits.shape[1]
            state = device.of(before if before and fits else TemporalFilter.begin(logits.shape[1]), logits.device)
        answer, self._filter = state.step(logits.detach(), known)
        return answer

    def _on_host(self, logits: Tensor, known: Tensor | None) -> Tensor:
        rows: Floats = logits.detach().double().cpu().numpy()
        usable: Bools = np.isfinite(rows.max(axis=1, initial=-np.inf))
        all_usable = bool(usable.all())
        if not all_usable:
            rows = rows[usable]
        if not len(rows):
            return logits
        state = self._state()
        if state is None or state.last.shape != rows.shape[1:]:
            state = TemporalFilter.begin(rows.shape[1])
        if state is not self._filter:
            self._filter = state
        new = state.are_new(rows)
        if not all_usable:
            new |= np.diff(np.flatnonzero(usable), prepend=-1) > 1
            state.last = state.last if usable[-1] else np.ones_like(state.last)
        if known is not None:
            new &= known.cpu().numpy()[usable]
        found = self._correct(state, outputs_of(rows), new)
        corrected = ~np.isnan(found[:, 0])
        state.corrected += int(corrected.sum())
        state.relabelled += int((found.argmax(1) != rows.argmax(1))[corrected].sum())
        state.skipped += int((~new).sum())
        if all_usable and corrected.all():
            return torch.from_numpy(found).to(logits)
        if not corrected.any():
            return logits
        places = torch.from_numpy(np.flatnonzero(usable)[corrected]).to(logits.device)
        return logits.index_copy(0, places, torch.from_numpy(found[corrected]).to(logits))

    def peek(self, logits: Tensor) -> Tensor:
        """Return the corrected logits and learn nothing."""
        with self._lock, self._kept(always=True):
            return self._forward(logits)

    def _correct(self, state: TemporalFilter, p: Floats, new: Bools) -> Floats:
        """The log posterior of each sample, NaN where no expert speaks; learn from those that are new."""
        found, parts = np.full_like(p[:, 0], np.nan), []
        for start, stop in _pieces(new, state.samples % BLOCK):
            piece, outputs, on = slice(start, stop), p[start:stop, state.temperature], state.on
            if new[start]:
                likelihoods, *answer = state.take(p[piece])
                if self.lookahead == "batch":
                    parts.append((outputs, likelihoods, *answer))
                elif on:
                    found[piece] = mixed(outputs, *answer)
            elif on:
                found[piece] = mixed(outputs, *state.look(p[piece]))
        if parts:
            outputs, likelihoods, posteriors, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
            posteriors[:, :CHAINS] = smoothed(posteriors[:, :CHAINS], likelihoods[:, :CHAINS])
            found[new] = np.where(weights.any(axis=1, keepdims=True), mixed(outputs, posteriors, weights), np.nan)
        return found

    @property
    def on(self) -> bool:
        """Whether any expert has a say at present."""
        state = self._state()
        return state is not None and state.on

    @property
    def reported_on(self) -> bool:
        """The same without waiting for a device: as it was after one of the last batches."""
        if self._filter is None or isinstance(self._filter, TemporalFilter):
            return self.on
        return self._report.read(self._filter.counts)

    def _state(self) -> TemporalFilter | None:
        """The filter on the host; this waits for a device."""
        state = self._filter
        return state if state is None or isinstance(state, TemporalFilter) else state.to_host()

    @property
    def stats(self) -> LabelPriorStats:
        """How much it intervenes."""
        state = self._state() or TemporalFilter.begin(2)
        weights = (weights_of(state.strength) * state.speaks)[:, state.temperature]
        stay = round(float(weights[:CHAINS] @ TRUST[:CHAINS, 0] / (1 + weights.sum())), 4)
        samples = state.samples + state.skipped
        return LabelPriorStats(samples, state.corrected, state.relabelled, state.skipped, state.on, stay)

    def unless_complete(self) -> AbstractContextManager[None]:
        """Undo what was learned if the block raises."""
        return self._kept(always=False)

    @contextmanager
    def _kept(self, *, always: bool) -> Iterator[None]:
        """Undo what is learned in the block, always or if it raises."""
        before, complete = None if self._filter is None else self._filter.copy(), False
        try:
            yield
            complete = not always
        finally:
            if not complete:
                self._filter = before

    def get_extra_state(self) -> dict[str, Any]:
        """Return everything it remembers, for `state_dict`."""
        with self._lock:
            state = self._state()
        kept = {} if state is None else vars(state)
        return {name: torch.tensor(v) if isinstance(v, np.ndarray) else v for name, v in kept.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take it back from a `state_dict`."""
        loaded = _loaded(state) if state else None
        with self._lock:
            self._filter = loaded

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle everything but the lock."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_lock", "_report")}
        return {**kept, "_filter": self._state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_lock": threading.Lock(), "_report": _Report()})  # type: ignore[no-untyped-call]


class _Report:
    """Copies whether the prior corrects from a device, without waiting for it."""

    def __init__(self) -> None:
        self.on = False
        self._copy: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def read(self, counts: Tensor) -> bool:
        """Return what the last copy that has arrived says, and begin another one."""
        if self._copy is None or self._event is None:
            self._copy = torch.empty(counts.shape, dtype=counts.dtype, pin_memory=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        elif self._event.query():  # type: ignore[no-untyped-call]
            self.on = bool(self._copy[-1])
        else:
            return self.on
        self._copy.copy_(counts, non_blocking=True)
        self._event.record(torch.cuda.current_stream(counts.device))
        return self.on


@functools.cache
def device_filter(device: torch.device) -> "type[DeviceFilter] | None":
    """The filter for a CUDA device, if Triton and what it needs are there; it is tried once."""
    try:
        from resitta.training.device_filter import DeviceFilter  # noqa: PLC0415  (Triton is slow to import)

        DeviceFilter.of(TemporalFilter.begin(2), device).step(torch.zeros((1, 2), device=device))
    except Exception as error:  # no Triton, no compiler for it, or another kind of device
        reason = str(error).partition("\n")[0]
        why = f"{type(error).__name__}: {reason}"
        logger.warning("the label prior runs on the host, and waits for %s at every call: %s", device, why)
        return None
    return DeviceFilter


def _pieces(new: Bools, place: int) -> Iterator[tuple[int, int]]:
    """Split samples where new ones meet others, and new ones also where a block ends that has `place` samples.

    >>> list(_pieces(np.array([True] * 30 + [False] * 40), 20))
    [(0, 5), (5, 30), (30, 70)]
    """
    borders = [0, *(np.flatnonzero(new[1:] != new[:-1]) + 1).tolist(), len(new)]
    for first, stop in pairwise(borders):
        start, learned = first, new[first]
        while start < stop:
            end = min(stop, start + BLOCK - place) if learned else stop
            yield start, end
            place = (place + end - start) % BLOCK if learned else place
            start = end


def _loaded(state: dict[str, Any]) -> TemporalFilter:
    """Make a filter of its saved values; refuse those that have other shapes or are not finite."""
    values: dict[str, Any] = {k: v.cpu().numpy().copy() if isinstance(v, Tensor) else v for k, v in state.items()}
    fresh = vars(TemporalFilter.begin((*np.shape(values.get("last", 0)), 1)[0]))
    for name, like in fresh.items():
        shape, own = np.shape(values.get(name, 0)), np.shape(like)
        alike = len(shape) == len(own) and (shape == own or (name == "blocks" and shape[1:] == own[1:]))
        if not alike or not (name == "last" or np.isfinite(values[name]).all()):
            raise BadState(f"{name} of the label prior must be finite, of shape {own}, found shape {shape}")
    return TemporalFilter(**values)
