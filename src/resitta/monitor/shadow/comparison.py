"""Two classifiers on the same labelled images: accuracies, their difference, and whether it may be chance."""

import math
from dataclasses import dataclass
from statistics import NormalDist

Z = NormalDist().inv_cdf(0.975)
"""Standard errors on each side of a 95 % interval."""
EXACT = 200
"""Up to so many images on which the two differ, the test is exact; beyond, the normal approximation is good."""


@dataclass(frozen=True)
class Estimate:
    """A number, and its 95 % interval from `low` to `high`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedAccuracy:
    """The accuracies of the adapted and of the source network on the same labelled images.

    `difference` is that of the adapted network minus that of the source. `p_value` is of McNemar's test, one-sided: how
    likely the source would be ahead by as much, or more, if both were equally accurate.
    """

    labelled: int
    adapted: Estimate
    source: Estimate
    difference: Estimate
    p_value: float


def paired_accuracy(both: int, adapted_only: int, source_only: int, neither: int) -> PairedAccuracy | None:
    """Compare by how many images both, one or neither predicted rightly; None without images.

    >>> found = paired_accuracy(both=40, adapted_only=20, source_only=5, neither=35)
    >>> round(found.adapted.value, 2), round(found.source.value, 2), round(found.difference.low, 2)
    (0.6, 0.45, 0.05)
    """
    count = both + adapted_only + source_only + neither
    if not count:
        return None
    return PairedAccuracy(
        labelled=count,
        adapted=wilson(both + adapted_only, count),
        source=wilson(both + source_only, count),
        difference=paired_difference(adapted_only, source_only, count),
        p_value=source_ahead_by_chance(adapted_only, source_only),
    )


def wilson(right: int, count: int) -> Estimate:
    """Wilson's score interval of a share.

    >>> found = wilson(9, 10)
    >>> round(found.low, 3), round(found.high, 3)
    (0.596, 0.982)
    """
    share, weight = right / count, Z * Z / count
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + weight * weight / 4) / (1 + weight)
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def paired_difference(first_only: int, second_only: int, count: int) -> Estimate:
    """The difference of two shares of the same images, with the adjusted Wald interval of Bonett and Price.

    p₁ = (first_only + 1)/(count + 2), p₂ alike; p₁ - p₂ ± z √((p₁ + p₂ - (p₁ - p₂)²)/(count + 2))

    >>> found = paired_difference(20, 5, 100)
    >>> round(found.value, 2), round(found.low, 3), round(found.high, 3)
    (0.15, 0.051, 0.243)
    """
    one, two = ((only + 1) / (count + 2) for only in (first_only, second_only))
    half = Z * math.sqrt(max(0.0, one + two - (one - two) ** 2) / (count + 2))
    return Estimate((first_only - second_only) / count, max(-1.0, one - two - half), min(1.0, one - two + half))


def source_ahead_by_chance(adapted_only: int, source_only: int) -> float:
    """McNemar's test, one-sided: the probability of at least `source_only` heads in as many tosses as both add up to.

    >>> source_ahead_by_chance(0, 3), source_ahead_by_chance(3, 0), round(source_ahead_by_chance(400, 500), 5)
    (0.125, 1.0, 0.00048)
    """
    tosses = adapted_only + source_only
    if tosses <= EXACT:
        return float(sum(math.comb(tosses, heads) for heads in range(source_only, tosses + 1)) / 2**tosses)
    return math.erfc((source_only - 0.5 - tosses / 2) / math.sqrt(tosses / 2)) / 2
