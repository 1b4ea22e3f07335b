"""The shadow of an adapter: predicts a share of its images with the source network, too, and compares."""

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadLabels, BadState
from resitta.method import AdapterLike
from resitta.monitor.events import Compared, FellBack, Labelled, Resumed
from resitta.monitor.shadow.ids import Ids, chosen, whole_numbers
from resitta.monitor.shadow.ledger import Ledger
from resitta.monitor.shadow.pending import Pending, rows
from resitta.monitor.shadow.records import NOTHING_ANSWERED, Answered, FeedbackCount, FeedbackStats, ShadowStats
from resitta.runtime.locks import LockRank, new_lock
from resitta.training.network import Network

logger = logging.getLogger(__name__)
RECENT = 500
"""The last compared images, over which a comparison without labels is recent."""
LABELLED = 100
"""The newest labelled images, over which a comparison with labels is recent; fallback decides by them."""
EVERY = 64
"""Compared images from one event to the next."""
FALL_BACK, RESUME = 0.0005, 0.05
"""The p-value below which the source is significantly better, and the one above which it no longer is."""


class Shadow:
    """Compares what an adapter answers with what the source network says. Thread-safe.

    Which images are compared depends on their number in the stream and the seed alone. Only labels tell which of two
    networks is right: with `fallback`, the source's predictions are returned from when it is significantly better on
    the newest labelled images until it no longer is.

    >>> from resitta.conformance import tiny_network
    >>> source, shadow = Network(tiny_network()), Shadow(1.0)
    >>> images = torch.rand(48, 3, 8, 8)
    >>> for batch in images.split(16):
    ...     logits = shadow.watch(source, batch, source.predict(batch))
    >>> shadow.answered.ids, shadow.stats.running.compared, shadow.stats.running.disagreement
    (range(32, 48), 32, 0.0)
    >>> shadow.feedback(source, [40, 47, 48], [0, 1, 0])  # the source predicts the other 16 images first
    FeedbackCount(used=2, not_compared=0, unknown=1, falling_back=False)
    """

    def __init__(self, share: float, *, seed: int = 0, fallback: bool = False) -> None:
        self.share, self.seed, self.fallback = share, seed, fallback
        self.lock = new_lock(LockRank.COMPARISON)
        self._news = deque[object]()
        self._calls = threading.local()
        self._fails = False
        self.clear()

    def clear(self) -> None:
        """Begin anew, with another epoch."""
        with self.lock:
            self.epoch = secrets.token_hex(4)
            self.predicted = self.switched_at = self.fell_back = 0
            self.not_compared = self.unknown = self.told = 0
            self.falling_back = False
            self.classes: int | None = None
            self.ledger = Ledger()
            self.pending = Pending()

    # --- for predictions ----------------------------------------------------------------------------------------------

    def watch(self, source: Network, images: Tensor, logits: Tensor) -> Tensor:
        """Number images and compare some of them; return the logits, or those of the source."""
        with self.lock:
            ids = range(self.predicted, self.predicted + len(images))
            self.predicted, self.classes = ids.stop, logits.shape[1]
            compared, answer = chosen(ids, self.share, self.seed), logits
            with self._failing_alone():
                answer = self._compare(source, images, logits, np.asarray(ids), np.flatnonzero(compared))
                self._collect(wait=False)
            self._calls.answered = Answered(ids, tuple(compared.tolist()), answer is not logits, self.epoch)
            return answer

    @property
    def answered(self) -> Answered:
        """The images of this thread's last call."""
        found: Answered = getattr(self._calls, "answered", replace(NOTHING_ANSWERED, epoch=self.epoch))
        return found

    def report(self, emit: Callable[[object], None]) -> None:
        """Emit the events that have come up. The caller holds no lock, since listeners may take any."""
        while self._news:
            try:
                event = self._news.popleft()
            except IndexError:  # another thread took it
                return
            emit(event)

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """Predictions, labels and saves do not depend on the source's predictions: the first of failures is logged."""
        try:
            yield
        except Exception:
            if not self._fails:
                logger.exception("the source network cannot predict for the comparison; the adapter continues")
            self._fails = True

    def _compare(self, source: Network, images: Tensor, logits: Tensor, ids: Ids, places: NDArray[np.intp]) -> Tensor:
        """Compare the images at some places; return the logits, or while falling back the source's of all images."""
        if not self.falling_back:
            if len(places):
                self.pending.keep(source, ids[places], rows(images, places), rows(logits, places))
            return logits
        self.pending.predict(source)
        with torch.inference_mode(False):
            answer = source.predict(images.to(source.device, source.dtype)).to(logits.dtype)
        if len(places):
            self.pending.note(ids[places], rows(logits, places), rows(answer, places))
        return answer

    def _collect(self, *, wait: bool) -> None:
        """Take in the results that have arrived."""
        for ids, values in self.pending.arrived(wait=wait):
            self.ledger.add(ids, values)
            self._fails = False
        compared, running, recent = int(self.ledger.sums[0]), self.ledger.agreement(), self.ledger.agreement(RECENT)
        if compared - self.told >= EVERY and running is not None and recent is not None:
            self.told = compared
            self._news.append(Compared(samples=self.predicted, running=running, recent=recent))

    # --- for labels ---------------------------------------------------------------------------------------------------

    def feedback(self, source: Network, ids: Any, labels: Any) -> FeedbackCount:
        """Take the labels of images that were predicted before; ids that are not known are counted."""
        with self.lock:
            wanted, given = whole_numbers(ids, "ids"), whole_numbers(labels, "labels")
            self._check(wanted, given)
            self._settle(source)
            known = self.ledger.label(wanted, given)
            missed = ~known & (wanted >= self.ledger.oldest) & (wanted < self.predicted)
            used, not_compared = int(known.sum()), int(missed.sum())
            unknown = len(wanted) - used - not_compared
            self.not_compared, self.unknown = self.not_compared + not_compared, self.unknown + unknown
            if used:
                self._tell_accuracies()
                self._decide()
            return FeedbackCount(used, not_compared, unknown, self.falling_back)

    def _tell_accuracies(self) -> None:
        running, recent = self.ledger.accuracy(), self.ledger.accuracy(last=LABELLED)
        if running is not None and recent is not None:
            self._news.append(Labelled(samples=self.predicted, running=running, recent=recent))

    def _check(self, ids: Ids, labels: Ids) -> None:
        if len(ids) != len(labels):
            raise BadLabels(f"there are {len(ids)} ids and {len(labels)} labels; pass one label for each id")
        bad = labels[(labels < 0) | (labels >= (self.classes or 2**20))]
        if len(bad):
            classes = "classes" if self.classes is None else f"the model's {self.classes} classes"
            raise BadLabels(f"labels must be numbers of {classes}, from 0 on, found {bad[0]}")

    def _settle(self, source: Network) -> None:
        """Finish all comparisons that have begun."""
        with self._failing_alone():
            self.pending.predict(source)
            self._collect(wait=True)

    def _decide(self) -> None:
        """Fall back to the source, or resume, by the newest labelled images since the last such switch."""
        recent = self.ledger.accuracy(last=LABELLED, since=self.switched_at)
        if not self.fallback or recent is None:
            return
        if not self.falling_back and recent.p_value < FALL_BACK:
            self._news.append(FellBack(samples=self.predicted, recent=recent))
            self.fell_back += 1
        elif self.falling_back and recent.labelled == LABELLED and recent.p_value > RESUME:
            self._news.append(Resumed(samples=self.predicted, recent=recent))
        else:
            return
        self.falling_back, self.switched_at = not self.falling_back, self.predicted

    # --- for reports and saved states ---------------------------------------------------------------------------------

    @property
    def stats(self) -> ShadowStats:
        """A record of the comparison."""
        with self.lock:
            ledger = self.ledger
            return ShadowStats(
                share=self.share,
                predicted=self.predicted,
                running=ledger.agreement(),
                recent=ledger.agreement(RECENT),
                feedback=FeedbackStats(
                    not_compared=self.not_compared,
                    unknown=self.unknown,
                    running=ledger.accuracy(),
                    recent=ledger.accuracy(last=LABELLED),
                ),
                falling_back=self.falling_back,
                fell_back=self.fell_back,
            )

    def state(self, source: Network) -> dict[str, Any]:
        """Return everything for `state_dict`; comparisons that have begun are finished first."""
        with self.lock:
            self._settle(source)
            counts = {name: getattr(self, name) for name in COUNTS}
            return {**counts, "falling_back": self.falling_back, "ledger": self.ledger.state()}

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from a `state`; None is that of an adapter without a shadow. The epoch is another one."""
        counts = {name: count(state[name]) for name in COUNTS} if state else {}
        ledger = Ledger.of(state["ledger"]) if state else Ledger()
        with self.lock:
            self.clear()
            if state is None:
                return
            vars(self).update(counts)
            self.ledger, self.falling_back = ledger, self.fallback and bool(state["falling_back"])


COUNTS = ("predicted", "switched_at", "fell_back", "not_compared", "unknown", "told")
"""The counters in a state."""


def load_shadow(adapter: AdapterLike, state: dict[str, Any] | None) -> None:
    """Load a shadow's state into the adapter's shadow, if it has one."""
    if adapter.shadow is not None:
        adapter.shadow.load(state)


def count(value: Any) -> int:
    """A counter of a state."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise BadState(f"a shadow has counted {value!r}")
    return value
