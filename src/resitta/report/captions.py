"""Sentences of a page that depend on what was measured; each says what the runs show and no more."""

import math
from collections.abc import Sequence

import numpy as np

from resitta.report.charts import drifts, same_stream, samples_per_point
from resitta.report.groups import Group
from resitta.report.table import Table


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
    """What the drift is, and what it does from the middle third of the stream to the last."""
    shown = [group for group in groups if drifts(group)]
    order = [group for group in shown if group is ours] + [group for group in shown if group is not ours]
    described = [text for group in order if (text := _course(group))]
    listed = (
        f" Mean over the middle third of the stream and over the last: {'; '.join(described)}." if described else ""
    )
    return (
        "Wasserstein distance between the statistics of the BatchNorm layers and the source's, mean over the "
        f"layers.{listed}"
    )


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
