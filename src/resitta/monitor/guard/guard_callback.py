"""The callback that a guard sets over an adapter."""

import logging
import math
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from torch import Tensor

from resitta.errors import BadSetting, Collapsed
from resitta.method import AdapterLike, Learner
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import GuardEnded, GuardFired, Restarted
from resitta.monitor.guard.episodes import Episodes
from resitta.monitor.guard.guard_state import GuardState
from resitta.monitor.guard.health_signs import HealthSigns
from resitta.monitor.guard.opinion import Opinion
from resitta.monitor.guard.settings import Guard
from resitta.monitor.guard.snapshot import Snapshot

logger = logging.getLogger(__name__)
Reason = Literal["unknown", "non-finite", "entropy", "drift", "diversity"]


class GuardCallback(Callback):
    """Takes back updates that break the adapter, keeps unknown samples out of its memory, and acts on a collapse.

    An update is taken back by returning to the state after the one before it: the weights, the statistics, the
    optimizer, the memory and the random generator are what they were; the count of samples goes on.

    `counts` tells how often each reason was found: samples for "unknown", steps for the others. It belongs to the
    adapter's state, as its count of samples does; `totals` counts in this process, whatever is loaded or reset. An
    event and a line in the log come when a reason begins, and again when it has ended: when a whole `window` of
    samples has come without it.
    """

    copied: ClassVar[bool] = True

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.totals: Counter[str] = Counter()
        self._episodes = Episodes(guard.window)
        self._learner: weakref.ref[Learner] | None = None
        self._case: GuardState | None = None
        self._origin: Snapshot | None = None

    @property
    def counts(self) -> Counter[str]:
        """How often each reason was found since the adapter began, or was reset."""
        return self._episodes.counts

    def on_event(self, adapter: AdapterLike, event: object) -> None:
        """Begin anew with an adapter that begins anew; one that has loaded a state keeps its learner."""
        if isinstance(event, Restarted) and (self._learner is None or self._learner() is not adapter.learner):
            self._learner = weakref.ref(adapter.learner)
            self._episodes = Episodes(self.guard.window)
            self._case = GuardState(adapter, self.guard)
            self._origin = self._case.history.healthy

    def before_step(self, adapter: AdapterLike, images: Tensor) -> None:
        """Make sure that there is a state to go back to."""
        if self._case is None:  # a state was loaded without its guard: only the source is known to be healthy
            self._case = GuardState(adapter, self.guard, healthy=self._origin)
        self._case.open(adapter)

    def after_step(self, adapter: AdapterLike, images: Tensor, logits: Tensor) -> None:
        """Look at the signs; take the step back, or keep what it has made of the adapter."""
        case, episodes = self._case, self._episodes
        assert case is not None  # before_step came first
        now = case.snapshot(adapter)
        signs = case.signs(logits, now)
        self._ask_the_source(adapter, case, images, logits, signs)
        alarms = list(self._alarms(adapter, case, signs))
        if not math.isfinite(signs.largest):
            case.history.undo(adapter)
        elif alarms and self.guard.action == "rollback":
            case.history.roll_back(adapter)
        elif alarms and self.guard.action == "reset":
            adapter.reset()
            self._episodes = episodes  # who asks why it was reset finds the reason
        elif now is not None:
            case.history.keep(now)
        self._report(adapter, alarms, signs, len(images))

    def _ask_the_source(
        self, adapter: AdapterLike, case: GuardState, images: Tensor, logits: Tensor, signs: HealthSigns
    ) -> None:
        """Compare with the source as long as the signs alone say collapse; it costs a forward pass."""
        if adapter.learner.updates and case.suspects(signs):
            case.opinion.ask(adapter, images, logits, case.known(logits))
        elif case.opinion.weight:
            case.opinion = Opinion()

    def _alarms(self, adapter: AdapterLike, case: GuardState, signs: HealthSigns) -> Iterator[GuardFired]:
        """Compare the signs with their bounds; what has never learned cannot have collapsed."""
        guard, action = self.guard, self.guard.action
        if not math.isfinite(signs.largest):
            yield fired(adapter, "non-finite", signs.largest, math.inf, "rollback")
        elif adapter.learner.updates:
            uncertain, monotonous = case.has_collapsed(signs)
            if uncertain:
                yield fired(adapter, "entropy", signs.entropy, guard.max_entropy, action)
            if signs.drift > guard.max_drift:
                yield fired(adapter, "drift", signs.drift, guard.max_drift, action)
            if monotonous:
                yield fired(adapter, "diversity", signs.diversity, guard.min_diversity, action)

    def _report(self, adapter: AdapterLike, alarms: list[GuardFired], signs: HealthSigns, samples: int) -> None:
        """Count, and tell what begins and what has ended."""
        found = {alarm.reason: 1 for alarm in alarms}
        if signs.unknown:
            alarms = [*alarms, fired(adapter, "unknown", signs.unknown, 0, "skip")]
            found["unknown"] = signs.unknown
        self.totals.update(found)
        begin = self._episodes.add(samples, found)
        for alarm in alarms:
            if alarm.reason in begin:
                level = logging.INFO if alarm.action == "skip" else logging.WARNING
                text = "after %d samples: %s is %.4g, allowed is %.4g; %s"
                logger.log(level, text, alarm.samples, alarm.reason, alarm.value, alarm.bound, alarm.action)
                adapter.emit(alarm)
        self._report_ends(adapter)
        for alarm in alarms:
            if alarm.action == "raise":
                advice = "reset() the adapter, or guard it with action='rollback'"
                raise Collapsed(f"{alarm.reason} is {alarm.value:.4g}, allowed is {alarm.bound:.4g}; {advice}")

    def _report_ends(self, adapter: AdapterLike) -> None:
        for reason, episode in self._episodes.ended().items():
            text = "after %d samples: %s has ended; found %d times in %d samples"
            logger.info(text, adapter.samples, reason, episode.found, episode.lasted)
            ended = GuardEnded(samples=adapter.samples, reason=reason, found=episode.found, lasted=episode.lasted)
            adapter.emit(ended)

    # For `state_dict`, and for copies.

    def state(self) -> dict[str, Any]:
        """Return everything the guard goes on from."""
        return {"episodes": self._episodes.state(), "case": None if self._case is None else self._case.state()}

    def load(self, adapter: AdapterLike, state: dict[str, Any] | None) -> None:
        """Go on from a `state`; None is that of an adapter without a guard, whose health nobody has watched."""
        window, case = self.guard.window, None if state is None else state["case"]
        self._episodes = Episodes(window) if state is None else Episodes.of(state["episodes"], window)
        self._case = None if case is None else GuardState(adapter, self.guard, state=case)

    @property
    def snapshots(self) -> list[Snapshot]:
        """The states that the guard might go back to."""
        return [] if self._case is None else self._case.history.snapshots

    def __getstate__(self) -> dict[str, Any]:
        """The settings: all else is in the state of the adapter that the guard is copied with."""
        return {"guard": self.guard}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["guard"])  # type: ignore[misc]


def fired(adapter: AdapterLike, reason: Reason, value: float, bound: float, action: str) -> GuardFired:
    """An event at the adapter's present sample."""
    return GuardFired(samples=adapter.samples, reason=reason, value=value, bound=bound, action=action)


def guard_callback(guard: Guard | bool) -> GuardCallback | None:
    """The callback for what a caller passes as `guard=`: settings, True for the defaults, False for none."""
    if isinstance(guard, bool):
        return GuardCallback(Guard()) if guard else None
    if not isinstance(guard, Guard):
        raise BadSetting(f"guard must be True, False or a resitta.monitor.guard.Guard, found {guard!r}")
    return GuardCallback(guard)


def load_guard(adapter: AdapterLike, state: dict[str, Any] | None) -> None:
    """Give a guard's state to the adapter's guard; say so where only one of the two is there."""
    if adapter.guard is not None:
        if state is None:
            begins = "the guard begins anew, and goes back to the source until three windows have passed"
            logger.warning("the state was saved without a guard: %s", begins)
        adapter.guard.load(adapter, state)
    elif state is not None:
        logger.warning("the state was saved with a guard, this adapter has none: what that one knew is left out")
