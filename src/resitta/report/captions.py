"""The headline and captions of a page: sentences computed from the runs.

A winner is named only where the interval of the paired difference excludes zero; see `resitta.report.significance`.
"""

import math
from collections.abc import Sequence

import numpy as np

from resitta.report.charts import drifts, same_stream, samples_per_point
from resitta.report.groups import Group
from resitta.report.palette import hero
from resitta.report.significance import difference, verdict
from resitta.report.table import Table


def headline(groups: Sequence[Group], ours: Group | None = None) -> str:
    """Compare the hero with the best of the others, and with the source."""
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


def facts(groups: Sequence[Group], ours: Group) -> list[tuple[str, str]]:
    """The numbers under the headline, each with what it is."""
    run, methods = ours.runs[0], len({group.method for group in groups})
    visits, domains = len(run.domains), len(set(run.domains))
    rows = f"method{'s' * (methods > 1)}" if methods == len(groups) else f"rows of {_count(methods, 'method')}"
    length = _count(domains, "domain") + ("" if visits == domains else f" in {visits} visits")
    return [
        (f"{ours.average:.1f} %", f"average error of {ours.label}"),
        (f"{ours.mean(lambda r: r.images_per_second):,.0f}", f"images per second with {ours.label}"),
        (f"{run.samples:,}", f"images from {length}, one stream per seed"),
        (f"{len(groups)}", f"{rows}, {seeds(groups)}"),
    ]


def seeds(groups: Sequence[Group]) -> str:
    """How many seeds the rows have.

    >>> seeds([])
    'no seeds'
    """
    counts = sorted({len(group.runs) for group in groups})
    if len(counts) < 2:
        each = " each" * (len(groups) > 1)
        return f"{_count(counts[0], 'seed')}{each}" if counts else "no seeds"
    return f"{counts[0]} to {counts[-1]} seeds"


def heat_words(groups: Sequence[Group], table: Table) -> dict[str, str]:
    """The parts of the table's caption that depend on the runs: `columns`, `among` and `legend`."""
    run = groups[0].runs[0]
    if len(set(run.domains)) < len(run.domains):
        columns = "a column is one visit to all domains"
    elif run.borders:
        columns = "the domains follow each other from left to right"
    else:
        columns = "the domains are mixed in the stream"
    several = len({row.task for row in table.rows}) > 1
    return {
        "columns": columns,
        "among": " among the rows of one task (stream and model)" if several else "",
        "legend": f" {table.legend}." if table.legend else "",
    }


def error_caption(groups: Sequence[Group], ours: Group) -> str:
    """What a point of the error over time is, and which rows are not in the figure."""
    points = f"Each point is the error over {samples_per_point(ours.runs[0]):,} samples"
    mean = ", mean over the seeds" if max(len(group.runs) for group in groups) > 1 else ""
    left_out = [group.label for group in groups if group not in same_stream(groups, ours)]
    missing = f" Not shown, since their streams have another length: {', '.join(left_out)}." if left_out else ""
    return f"{points}{mean}. Domains differ in difficulty: compare the rows at the same place.{missing}"


def drift_caption(groups: Sequence[Group], ours: Group) -> str:
    """Explain the drift, and compare its mean over the middle third of the stream with the last third."""
    shown = [group for group in groups if drifts(group)]
    order = [group for group in shown if group is ours] + [group for group in shown if group is not ours]
    courses = "; ".join(text for group in order if (text := _course(group)))
    listed = f" Mean over the middle third of the stream and over the last: {courses}." if courses else ""
    return f"Wasserstein distance between BatchNorm statistics and the source's, mean over the layers.{listed}"


def _course(group: Group) -> str:
    """The drift in the last two thirds of a stream, or nothing if there are too few values."""
    trace = np.array(group.mean_trace(lambda run: run.drift_over_time))
    third = len(trace) // 3
    if not third:
        return ""
    middle, last = float(trace[third : 2 * third].mean()), float(trace[2 * third :].mean())
    if not (math.isfinite(middle) and math.isfinite(last)):
        return ""
    change = "about the same" if abs(last - middle) <= 0.05 * middle else "rising" if last > middle else "falling"
    return f"{group.label} {middle:.2g} and {last:.2g} ({change})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
