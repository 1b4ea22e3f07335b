"""The result in one sentence, and what stands beside it."""

from collections.abc import Sequence

from resitta.report.groups import Group
from resitta.report.palette import hero


def headline(groups: Sequence[Group]) -> str:
    """Say what the hero makes of the source's error; without a source run, what it reaches."""
    ours = hero(groups)
    source = next((group for group in groups if group.method == "source" and group is not ours), None)
    if source is None:
        return f"{ours.label} reaches an average error of {ours.average:.1f} %"
    return f"{ours.label} {verb(source.average, ours.average)}: {source.average:.1f} % → {ours.average:.1f} %"


def verb(before: float, after: float) -> str:
    """What happened to an error.

    >>> verb(41.2, 20.3), verb(43.5, 22.4), verb(46.4, 33.5), verb(10.0, 12.0)
    ('halves the error', 'almost halves the error', 'lowers the error by 28 %', 'raises the error by 20 %')
    """
    share = after / before if before else 1.0
    if share < 0.48:
        return "more than halves the error"
    if share <= 0.505:
        return "halves the error"
    if share < 0.55:
        return "almost halves the error"
    if round(100 * share) == 100:
        return "leaves the error as it was"
    return f"{'lowers' if share < 1 else 'raises'} the error by {abs(1 - share):.0%}".replace("%", " %")


def runner_up(groups: Sequence[Group]) -> str:
    """How the best of the other methods does."""
    ours = hero(groups)
    others = [group for group in groups if group.method not in ("source", ours.method)]
    if not others:
        return ""
    best = min(others, key=lambda group: group.average)
    if best.average < ours.average:
        return f"{best.label} does better here: {best.average:.1f} %."
    rest = "The other method" if len(others) == 1 else f"The best of the {len(others)} other methods"
    return f"{rest}, {best.label}, reaches {best.average:.1f} %."
