"""What a guard has found: how often, and which reasons last."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Self

from resitta.errors import BadState


@dataclass
class Episode:
    """A reason that lasts. `began` and `last` are counts of samples, before it was first found and when it was last."""

    began: int
    last: int
    found: int = 0

    @property
    def lasted(self) -> int:
        """Over how many samples it was found."""
        return self.last - self.began


class Episodes:
    """Counts what is found, and tells when a reason begins and when it has ended: after `quiet` samples without it.

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
        """The episodes that are over; each is told once."""
        over = {reason: e for reason, e in self.lasting.items() if self.clock - e.last >= self.quiet}
        for reason in over:
            del self.lasting[reason]
        return over

    def state(self) -> dict[str, Any]:
        """Return everything for `state_dict`."""
        lasting = {reason: asdict(episode) for reason, episode in self.lasting.items()}
        return {"counts": dict(self.counts), "clock": self.clock, "lasting": lasting}

    @classmethod
    def of(cls, state: dict[str, Any], quiet: int) -> Self:
        """Undo `state`."""
        episodes = cls(quiet)
        episodes.clock = _count(state["clock"])
        episodes.counts.update({str(reason): _count(number) for reason, number in state["counts"].items()})
        for reason, values in state["lasting"].items():
            episodes.lasting[str(reason)] = Episode(**{name: _count(value) for name, value in values.items()})
        return episodes


def _count(value: Any) -> int:
    """Insist on a count.

    >>> _count(-1)
    Traceback (most recent call last):
        ...
    resitta.errors.BadState: a guard has counted -1
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadState(f"a guard has counted {value!r}")
    return value
