"""The result in one sentence, and what it rests on.

A winner is named only where the interval of the paired difference excludes zero; see `resitta.report.paired`.
"""

from collections.abc import Sequence

from resitta.report.groups import Group
from resitta.report.paired import difference, verdict
from resitta.report.palette import hero


def headline(groups: Sequence[Group], ours: Group | None = None) -> str:
    """Say how the hero compares with the best of the others, and what it makes of the source's error."""
    ours = ours or hero(groups)
    other = rival(groups, ours)
    found = difference(ours, other) if other else None
    if other is None or found is None or found.interval is None:
        return f"{ours.label} reaches an average error of {ours.average:.1f} %"
    if not found.distinct:
        return f"{ours.label} and {other.label} are level: {ours.average:.1f} % and {other.average:.1f} %"
    if found.mean > 0:
        return f"{other.label} does better than {ours.label}: {other.average:.1f} % against {ours.average:.1f} %"
    source = _source(groups, ours)
    if source is None:
        return f"{ours.label} has the lowest error: {ours.average:.1f} %"
    return f"{ours.label} {verb(source.average, ours.average)}: {source.average:.1f} % → {ours.average:.1f} %"


def lead(groups: Sequence[Group], ours: Group | None = None) -> str:
    """The numbers behind the headline: the paired difference, and the source's error if the headline lacks it."""
    ours = ours or hero(groups)
    other, source = rival(groups, ours), _source(groups, ours)
    if other is None:
        return ""
    head, parts = headline(groups, ours), []
    if f"{other.average:.1f} %" not in head:
        parts.append(f"The best of the others, {other.label}, has {other.average:.1f} %.")
    parts.append(verdict(ours, other))
    if source is not None and source is not other and "→" not in head:
        parts.append(f"{source.label} has {source.average:.1f} %.")
    return " ".join(parts)


def rival(groups: Sequence[Group], ours: Group) -> Group | None:
    """The best row of the same task; variants of our method count only if they are better or there is nothing else."""
    peers = _peers(groups, ours)
    others = [group for group in peers if group.method != ours.method or group.average < ours.average] or peers
    return min(others, key=lambda group: group.average, default=None)


def verb(before: float, after: float) -> str:
    """What happened to an error, in points unless it is about halved.

    >>> verb(41.2, 20.3), verb(43.5, 22.4), verb(25.2, 22.4), verb(10.0, 12.0)
    ('halves the error', 'almost halves the error', 'lowers the error by 2.8 points', 'raises the error by 2.0 points')
    """
    share, points = after / before if before else 1.0, after - before
    if share < 0.48:
        return "more than halves the error"
    if share <= 0.505:
        return "halves the error"
    if share < 0.55:
        return "almost halves the error"
    if abs(points) < 0.05:
        return "leaves the error as it was"
    return f"{'lowers' if points < 0 else 'raises'} the error by {abs(points):.1f} points"


def _peers(groups: Sequence[Group], ours: Group) -> list[Group]:
    return [group for group in groups if group.task == ours.task and group is not ours]


def _source(groups: Sequence[Group], ours: Group) -> Group | None:
    return next((group for group in _peers(groups, ours) if group.method == "source"), None)
