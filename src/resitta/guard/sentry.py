"""The watcher that a guard sets over an adapter."""

import logging
import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from resitta.errors import BadSetting, Collapsed
from resitta.events.event import GuardFired, Restarted
from resitta.guard.case import Case
from resitta.guard.settings import Guard
from resitta.guard.signs import Signs
from resitta.watch import Watcher

if TYPE_CHECKING:
    from resitta.adapter import Adapter

logger = logging.getLogger(__name__)
Reason = Literal["unknown", "non-finite", "entropy", "drift", "diversity"]
MOSTLY = 0.5
"""The share of a batch on which the source must disagree before few predicted classes count as a collapse."""


class Sentry(Watcher):
    """Takes back updates that break the adapter, keeps unknown samples out of its memory, and acts on a collapse.

    An update is taken back by returning to the state after the one before it: the weights, the statistics, the
    optimizer, the memory and the random generator are what they were; the count of samples goes on.

    `counts` tells how often each reason was found: samples for "unknown", steps for the others. An event and a line
    in the log come when a reason begins, not again while it lasts.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.counts: Counter[str] = Counter()
        self._lasting: set[str] = set()
        self._case: Case | None = None

    def notice(self, adapter: "Adapter", event: object) -> None:
        """Open a new case for an adapter that was reset or has loaded another state."""
        if isinstance(event, Restarted):
            self._case = None

    def before_step(self, adapter: "Adapter", images: Tensor) -> None:
        """Make sure that there is a state to go back to."""
        if self._case is None:
            self._case = Case(adapter, self.guard)
        self._case.open(adapter)

    def after_step(self, adapter: "Adapter", images: Tensor, logits: Tensor) -> None:
        """Look at the signs; take the step back, or keep what it has made of the adapter."""
        case = self._case
        assert case is not None  # before_step came first
        now = case.snapshot(adapter)
        signs = case.signs(logits, now)
        alarms = list(self._alarms(adapter, images, logits, signs))
        if not math.isfinite(signs.largest):
            case.history.undo(adapter)
        elif alarms and self.guard.action == "rollback":
            case.history.roll_back(adapter)
        elif alarms and self.guard.action == "reset":
            adapter.reset()
        elif now is not None:
            case.history.keep(now)
        self._report(adapter, alarms, signs)

    def _alarms(self, adapter: "Adapter", images: Tensor, logits: Tensor, signs: Signs) -> Iterator[GuardFired]:
        """Compare the signs with their bounds; what has never learned cannot have collapsed."""
        guard, action = self.guard, self.guard.action
        if not math.isfinite(signs.largest):
            yield fired(adapter, "non-finite", signs.largest, math.inf, "rollback")
        elif adapter.learner.updates:
            if signs.entropy > guard.max_entropy:
                yield fired(adapter, "entropy", signs.entropy, guard.max_entropy, action)
            if signs.drift > guard.max_drift:
                yield fired(adapter, "drift", signs.drift, guard.max_drift, action)
            if signs.diversity < guard.min_diversity and disagrees(adapter, images, logits):
                yield fired(adapter, "diversity", signs.diversity, guard.min_diversity, action)

    def _report(self, adapter: "Adapter", alarms: list[GuardFired], signs: Signs) -> None:
        """Count, and tell what was not there in the step before."""
        self.counts.update(alarm.reason for alarm in alarms)
        self.counts["unknown"] += signs.unknown
        if signs.unknown:
            alarms = [*alarms, fired(adapter, "unknown", signs.unknown, 0, "skip")]
        for alarm in alarms:
            if alarm.reason not in self._lasting:
                level = logging.INFO if alarm.action == "skip" else logging.WARNING
                text = "after %d samples: %s is %.4g, allowed is %.4g; %s"
                logger.log(level, text, alarm.samples, alarm.reason, alarm.value, alarm.bound, alarm.action)
                adapter.emit(alarm)
        self._lasting = {alarm.reason for alarm in alarms}
        for alarm in alarms:
            if alarm.action == "raise":
                advice = "reset() the adapter, or guard it with action='rollback'"
                raise Collapsed(f"{alarm.reason} is {alarm.value:.4g}, allowed is {alarm.bound:.4g}; {advice}")


def fired(adapter: "Adapter", reason: Reason, value: float, bound: float, action: str) -> GuardFired:
    """An event at the adapter's present sample."""
    return GuardFired(samples=adapter.samples, reason=reason, value=value, bound=bound, action=action)


def disagrees(adapter: "Adapter", images: Tensor, logits: Tensor) -> bool:
    """Whether the source model gives most images of a batch another label than the adapter does."""
    with torch.no_grad():
        other = adapter.source(images).argmax(dim=1) != logits.argmax(dim=1)
    return bool(other.float().mean() > MOSTLY)


def sentry_for(guard: Guard | bool) -> Sentry | None:
    """The watcher for what a caller passes as `guard=`: settings, True for the defaults, False for none."""
    if isinstance(guard, bool):
        return Sentry(Guard()) if guard else None
    if not isinstance(guard, Guard):
        raise BadSetting(f"guard must be True, False or a resitta.guard.Guard, found {guard!r}")
    return Sentry(guard)
