"""The events themselves."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Updated:
    """The adapter has learned.

    `entropy` is the mean over the batch just predicted, in nats. `drift` is the mean distance of the statistics from
    the source (see `Stats.drift`). `turnover` is the share of the memory that came in since the last such event;
    None for a method without a memory.

    >>> Updated(samples=64, updates=1, entropy=0.5, drift=0.1, turnover=1.0).updates
    1
    """

    samples: int
    updates: int
    entropy: float
    drift: float
    turnover: float | None


@dataclass(frozen=True, kw_only=True)
class GuardFired:
    """A guard has found something and acted: `value` is what it measured, `bound` what it allows.

    It comes when a reason begins, and not again before a `GuardEnded` of the same reason.

    >>> GuardFired(samples=64, reason="entropy", value=0.97, bound=0.9, action="rollback").reason
    'entropy'
    """

    samples: int
    reason: str
    value: float
    bound: float
    action: str


@dataclass(frozen=True, kw_only=True)
class GuardEnded:
    """What a guard had found is over: `found` tells how often (samples for "unknown", steps for other reasons).

    It was found over `lasted` samples; a window of samples without it has followed.

    >>> GuardEnded(samples=3000, reason="unknown", found=706, lasted=1500).found
    706
    """

    samples: int
    reason: str
    found: int
    lasted: int


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """The adapter has become another: it was reset, or has loaded a state.

    >>> Restarted(samples=0).samples
    0
    """

    samples: int


Event = Updated | GuardFired | GuardEnded | Restarted
EventHandler = Callable[[Event], None]
