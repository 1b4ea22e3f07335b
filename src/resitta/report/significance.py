"""Whether one row is better than another: the mean difference over seeds and domains, with a bootstrap interval."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resitta.data.corruptions import CORRUPTIONS
from resitta.report.groups import Group

FEWEST = 5
"""With fewer domains and fewer seeds than this, resampling says nothing and no interval is given."""

Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """The error of one row minus that of another, in points, over the seeds both have and the domains."""

    mean: float
    interval: Interval | None
    domains: int
    seeds: int

    @property
    def distinct(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    @property
    def basis(self) -> str:
        """The sample behind the interval, as text."""
        seeds = f"{self.seeds} seed{'s' * (self.seeds > 1)}"
        return f"{self.domains} domain{'s' * (self.domains > 1)}, {seeds}"

    def __str__(self) -> str:
        if self.interval is None:
            return f"{signed(self.mean)} points ({self.basis}: too few for an interval)"
        low, high = map(signed, self.interval)
        return f"{signed(self.mean)} points, 95 % bootstrap interval {low} to {high} ({self.basis})"


def difference(one: Group, two: Group) -> Difference | None:
    """Compare two groups on the seeds both have; None if there is none or they had different tasks."""
    errors = [{run.seed: run.errors for run in group.runs} for group in (one, two)]
    seeds = sorted(errors[0].keys() & errors[1].keys())
    if not seeds or one.task != two.task:
        return None
    per_place = np.array([np.subtract(errors[0][seed], errors[1][seed]) for seed in seeds])
    values = _per_unit(per_place, one.runs[0].domains)
    return Difference(float(values.mean()), bootstrap_interval(values), values.shape[1], values.shape[0])


def bootstrap_interval(values: Floats, *, draws: int = 10_000, seed: int = 0) -> Interval | None:
    r"""The 95 % interval of the mean of paired differences d[s, k] over seeds s and domains k.

    A domain is hard or easy in every seed alike, and a seed's stream is drawn once for all its domains, so the S·K
    values are not independent draws. Seeds and domains are crossed effects and are resampled as such:

        d[s, k] = μ + a[s] + b[k] + e[s, k],   a[s] = mean_k d[s, ·] - d̄,   b[k] = mean_s d[·, k] - d̄
        μ* = d̄ + √(S/(S-1)) · mean(a*) + √(K/(K-1)) · mean(b*)

    where a* and b* are S and K draws with replacement. The factors undo the shrinkage of effects around their own mean,
    so that Var μ* estimates σ_a²/S + σ_b²/K + 2σ_e²/(S·K), never less than the variance of d̄. The interval holds the
    middle 95 % of `draws` values of μ*. A single seed, or a single domain, has no effect that could be resampled: the
    interval then speaks of other domains, or seeds, only. With two to four seeds it is too narrow where seeds differ
    more than domains do.

    Returns None for fewer than five seeds and fewer than five domains.
    """
    if max(values.shape) < FEWEST:
        return None
    rng, mean = np.random.default_rng(seed), float(values.mean())
    seeds, domains = (_resampled(values.mean(axis=axis) - mean, draws, rng) for axis in (1, 0))
    low, high = np.quantile(mean + seeds + domains, (0.025, 0.975))
    return float(low), float(high)


def best_two(groups: Sequence[Group]) -> tuple[Group, Group] | None:
    """The two groups with the lowest average errors; None if there is only one."""
    first, *others = sorted(groups, key=lambda group: group.average)
    return (first, others[0]) if others else None


def verdicts(groups: Sequence[Group]) -> list[str]:
    """One sentence per task about its best two rows.

    The rows are chosen by their errors: among many that are level, the best one owes its place partly to chance.
    """
    tasks: dict[str, list[Group]] = {}
    for group in groups:
        tasks.setdefault(group.task, []).append(group)
    pairs = [pair for members in tasks.values() if (pair := best_two(members))]
    return [verdict(*pair) for pair in pairs]


def verdict(one: Group, two: Group) -> str:
    """How two rows compare, in one sentence."""
    found = difference(one, two)
    pair = f"{one.label} minus {two.label}"
    if found is None:
        return f"{pair}: not compared, they have no seed in common."
    if found.interval is None:
        return f"{pair}: {found}."
    winner = one.label if found.mean < 0 else two.label
    return f"{pair}: {found}; {f'{winner} is better' if found.distinct else 'the two are level'}."


def signed(value: float) -> str:
    """A number of points with its sign, never -0.00.

    >>> signed(-0.001), signed(1.234)
    ('+0.00', '+1.23')
    """
    return f"{round(value, 2) + 0.0:+.2f}"


def _resampled(effects: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Means of effects drawn with replacement, scaled to the spread of the population."""
    count = len(effects)
    if count == 1:
        return np.zeros(draws)
    drawn: Floats = effects[rng.integers(count, size=(draws, count))].mean(axis=1) * np.sqrt(count / (count - 1))
    return drawn


def _per_unit(values: Floats, domains: Sequence[str]) -> Floats:
    """Average the columns that show one corruption: its visits and severities are no independent draws."""
    units = [_unit(domain) for domain in domains]
    names = list(dict.fromkeys(units))
    return np.stack([values[:, [unit == name for unit in units]].mean(axis=1) for name in names], axis=1)


def _unit(domain: str) -> str:
    name = re.sub(r" [1-5]$", "", domain)
    return name if name in CORRUPTIONS else domain
