"""The callback that guards an adapter."""

import logging
import math
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from resitta.errors import BadSetting, BadState, Collapsed
from resitta.method import AdapterLike, Learner
from resitta.monitor.callbacks import Callback
from resitta.monitor.events import GuardEnded, GuardFired, Restarted
from resitta.monitor.guard.guard_state import GuardState
from resitta.monitor.guard.health_signs import HealthSigns
from resitta.monitor.guard.settings import Guard
from resitta.monitor.guard.snapshot import Snapshot

logger = logging.getLogger(__name__)
Reason = Literal["unknown", "non-finite", "entropy", "drift", "diversity"]


@dataclass
class Episode:
    """A period in which a reason was found: `began` and `last` are sample counts, `found` is how often."""

    began: int
    last: int
    found: int = 0

    @property
    def lasted(self) -> int:
        """Its length in samples."""
        return self.last - self.began


class Episodes:
    """Counts reasons. One begins an episode when it is found, which ends after `quiet` samples without it.

    >>> episodes = Episodes(quiet=100)
    >>> episodes.add(64, {"unknown": 3}), episodes.add(64, {"unknown": 1}), episodes.add(64, {})
    (['unknown'], [], [])
    >>> episodes.ended()
    {}
    >>> _ = episodes.add(64, {})
    >>> episodes.ended()
    {'unknown': Episode(began=0, last=128, found=4)}
    """

    def __init__(self, quiet: int) -> None:
        self.quiet = quiet
        self.counts: Counter[str] = Counter()
        self.clock = 0
        self.lasting: dict[str, Episode] = {}

    def add(self, samples: int, found: dict[str, int]) -> list[str]:
        """Count what a step of so many samples has found; return the reasons that begin with it."""
        began, self.clock = self.clock, self.clock + samples
        begin = [reason for reason in found if reason not in self.lasting]
        for reason, number in found.items():
            episode = self.lasting.setdefault(reason, Episode(began, began))
            episode.last, episode.found = self.clock, episode.found + number
            self.counts[reason] += number
        return begin

    def ended(self) -> dict[str, Episode]:
        """Remove and return the episodes that are over."""
        over = [reason for reason, episode in self.lasting.items() if self.clock - episode.last >= self.quiet]
        return {reason: self.lasting.pop(reason) for reason in over}

    def state(self) -> dict[str, Any]:
        """Return everything for `state_dict`."""
        lasting = {reason: asdict(episode) for reason, episode in self.lasting.items()}
        return {"counts": dict(self.counts), "clock": self.clock, "lasting": lasting}

    @classmethod
    def of(cls, state: dict[str, Any], quiet: int) -> Self:
        """Restore a `state`."""
        episodes = cls(quiet)
        episodes.clock = _count(state["clock"])
        episodes.counts.update({str(reason): _count(number) for reason, number in state["counts"].items()})
        for reason, values in state["lasting"].items():
            episodes.lasting[str(reason)] = Episode(**{name: _count(value) for name, value in values.items()})
        return episodes


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadState(f"a guard has counted {value!r}")
    return value


class GuardCallback(Callback):
    """Undoes updates that break the adapter, filters out-of-distribution samples, and acts on a collapse.

    Undoing an update restores the weights, statistics, optimizer, memory and random generator to what they were after
    the update before it; the count of samples continues.

    `counts` is how often each reason was found: samples for "unknown", steps for the others. It is part of the
    adapter's state; `totals` counts in this process, whatever is loaded or reset. An event and a log line mark the
    begin of a reason, and its end after a whole `window` of samples without it.
    """

    copied: ClassVar[bool] = True

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.totals: Counter[str] = Counter()
        self._episodes = Episodes(guard.window)
        self._learner: weakref.ref[Learner] | None = None
        self._state: GuardState | None = None
        self._origin: Snapshot | None = None

    @property
    def counts(self) -> Counter[str]:
        """How often each reason was found since the adapter was made or reset."""
        return self._episodes.counts

    def on_event(self, adapter: AdapterLike, event: object) -> None:
        """Start over with a new learner; an adapter that has loaded a state keeps its learner."""
        if isinstance(event, Restarted) and (self._learner is None or self._learner() is not adapter.learner):
            self._learner = weakref.ref(adapter.learner)
            self._episodes = Episodes(self.guard.window)
            self._state = GuardState(adapter, self.guard)
            self._origin = self._state.history.healthy

    def before_step(self, adapter: AdapterLike, images: Tensor) -> None:
        """Make sure that there is a state to return to."""
        if self._state is None:  # a state was loaded without its guard: only the source is known to be healthy
            self._state = GuardState(adapter, self.guard, healthy=self._origin)
        self._state.begin_step(adapter)

    def after_step(self, adapter: AdapterLike, images: Tensor, logits: Tensor) -> None:
        """Check the signs, then undo the step or keep its result."""
        state, episodes = self._state, self._episodes
        assert state is not None  # before_step came first
        now = Snapshot(adapter) if adapter.learner.updates != state.updates else None
        signs = state.signs(logits, now)
        state.compare_with_source(adapter, images, logits, signs)
        alarms = list(self._alarms(adapter, state, signs))
        if not math.isfinite(signs.largest):
            state.history.undo(adapter)
        elif alarms and self.guard.action == "rollback":
            state.history.roll_back(adapter)
        elif alarms and self.guard.action == "reset":
            adapter.reset()
            self._episodes = episodes  # so that `counts` still gives the reason for the reset
        elif now is not None:
            state.history.keep(now)
        self._report(adapter, alarms, signs, len(images))

    def known(self, adapter: AdapterLike, images: Tensor, logits: Tensor) -> Tensor | None:
        """Which samples a label prior may learn from; None if all. It looks as the filter of the memory does."""
        state = self._state
        if state is None or not self.guard.screen:
            return None
        return ~state.judge(adapter.source.pixels(images), logits, state.unknown_rate, state.exposure)[0]

    def _alarms(self, adapter: AdapterLike, state: GuardState, signs: HealthSigns) -> Iterator[GuardFired]:
        """Compare the signs with their bounds; what has never learned cannot have collapsed."""
        guard, action = self.guard, self.guard.action
        if not math.isfinite(signs.largest):
            yield fired(adapter, "non-finite", signs.largest, math.inf, "rollback")
        elif adapter.learner.updates:
            uncertain, monotonous = state.has_collapsed(signs)
            if uncertain:
                yield fired(adapter, "entropy", signs.entropy, guard.max_entropy, action)
            if signs.drift > guard.max_drift:
                yield fired(adapter, "drift", signs.drift, guard.max_drift, action)
            if monotonous:
                yield fired(adapter, "diversity", signs.diversity, guard.min_diversity, action)

    def _report(self, adapter: AdapterLike, alarms: list[GuardFired], signs: HealthSigns, samples: int) -> None:
        """Count the alarms, and report episodes that begin and end."""
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
        for reason, episode in self._episodes.ended().items():
            text = "after %d samples: %s has ended; found %d times in %d samples"
            logger.info(text, adapter.samples, reason, episode.found, episode.lasted)
            adapter.emit(GuardEnded(samples=adapter.samples, reason=reason, found=episode.found, lasted=episode.lasted))
        for alarm in alarms:
            if alarm.action == "raise":
                advice = "reset() the adapter, or guard it with action='rollback'"
                raise Collapsed(f"{alarm.reason} is {alarm.value:.4g}, allowed is {alarm.bound:.4g}; {advice}")

    # For `state_dict`, and for copies.

    def state(self) -> dict[str, Any]:
        """Return everything the guard needs to continue."""
        return {"episodes": self._episodes.state(), "case": None if self._state is None else self._state.state()}

    def load(self, adapter: AdapterLike, state: dict[str, Any] | None) -> None:
        """Continue from a `state`; None is that of an adapter without a guard, of unknown health."""
        window, saved = self.guard.window, None if state is None else state["case"]
        self._episodes = Episodes(window) if state is None else Episodes.of(state["episodes"], window)
        self._state = None if saved is None else GuardState(adapter, self.guard, state=saved)

    @property
    def snapshots(self) -> list[Snapshot]:
        """The states that the guard may return to."""
        return [] if self._state is None else self._state.history.snapshots

    def __getstate__(self) -> dict[str, Any]:
        """The settings; everything else is in the state of the adapter that the guard is copied with."""
        return {"guard": self.guard}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["guard"])  # type: ignore[misc]


def fired(adapter: AdapterLike, reason: Reason, value: float, bound: float, action: str) -> GuardFired:
    """An event at the adapter's present sample."""
    return GuardFired(samples=adapter.samples, reason=reason, value=value, bound=bound, action=action)


def guard_callback(guard: Guard | bool) -> GuardCallback | None:
    """The callback for the argument `guard=`: settings, True for the defaults, False for none."""
    if isinstance(guard, bool):
        return GuardCallback(Guard()) if guard else None
    if not isinstance(guard, Guard):
        raise BadSetting(f"guard must be True, False or a resitta.monitor.guard.Guard, found {guard!r}")
    return GuardCallback(guard)


def load_guard(adapter: AdapterLike, state: dict[str, Any] | None) -> None:
    """Load a guard's state into the adapter's guard; warn if only one of the two exists."""
    if adapter.guard is not None:
        if state is None:
            begins = "the guard begins anew, and goes back to the source until three windows have passed"
            logger.warning("the state was saved without a guard: %s", begins)
        adapter.guard.load(adapter, state)
    elif state is not None:
        logger.warning("the state was saved with a guard, this adapter has none: the guard's state is ignored")
