"""The figures of a report, drawn from runs."""

import math
from collections.abc import Mapping, Sequence

from resitta.bench.record import RunRecord
from resitta.report.axes import Span
from resitta.report.figures import WIDE, Series, Style, bars, lines
from resitta.report.groups import Group
from resitta.report.palette import ACCENT, NEUTRAL
from resitta.report.paper_comparison import Comparison
from resitta.report.table import columns_of


def smooth(values: Sequence[float], window: int) -> tuple[float, ...]:
    """Return the centred moving average over `window` values (odd; fewer at the ends), ignoring NaN."""
    reach = window // 2
    around = ([v for v in values[max(0, i - reach) : i + reach + 1] if math.isfinite(v)] for i in range(len(values)))
    return tuple(sum(near) / len(near) if near else math.nan for near in around)


Colours = Mapping[str, str]
"""The colour of each group, by its label."""


def spans_of(domains: Sequence[str], borders: Sequence[int], samples: int) -> tuple[Span, ...]:
    """Return the samples of each domain, from its first one; of each visit if domains come back."""
    if not borders:
        return ()
    columns = columns_of(domains)
    starts = [borders[places[0]] for places in columns.values()]
    return tuple(Span(a, b, name) for name, a, b in zip(columns, starts, [*starts[1:], samples], strict=True))


def same_stream(groups: Sequence[Group], ours: Group) -> list[Group]:
    """Return the groups whose domains begin and end where ours do; only they share a time axis."""
    extent = (ours.runs[0].borders, ours.runs[0].samples)
    return [group for group in groups if (group.runs[0].borders, group.runs[0].samples) == extent]


def samples_per_point(run: RunRecord) -> int:
    """Return how many samples a point of `error_over_time` averages."""
    return min(run.samples, run.window * (2 * (smoothing(run) // 2) + 1))


def smoothing(run: RunRecord) -> int:
    """Return the window of `smooth` for a trace: a fortieth of its length."""
    return len(run.error_over_time) // 40


def error_over_time(groups: Sequence[Group], colours: Colours, spans: Sequence[Span], *, width: int = WIDE) -> str:
    """Draw the error of each method along the stream, smoothed over a fortieth of it."""
    series = []
    for group in groups:
        trace, window = group.mean_trace(lambda run: run.error_over_time), group.runs[0].window
        time = [min((place + 0.5) * window, group.runs[0].samples) for place in range(len(trace))]
        series.append(_series(group, colours, time, smooth(trace, smoothing(group.runs[0]))))
    x_label = "" if spans else "samples seen"
    return lines(series, title="Error over time", y_label="error %", x_label=x_label, spans=spans, width=width)


def drift_over_time(groups: Sequence[Group], colours: Colours, spans: Sequence[Span], *, width: int = WIDE) -> str:
    """Draw the distance of each method's statistics to the source's, along the stream."""
    series = [
        _series(group, colours, group.runs[0].drift_at, group.mean_trace(lambda run: run.drift_over_time))
        for group in groups
        if drifts(group)
    ]
    title, x_label = "Drift of the statistics over time", "" if spans else "samples seen"
    return lines(series, title=title, y_label="mean W₂ to the source", x_label=x_label, spans=spans, width=width)


def drift_per_layer(groups: Sequence[Group], colours: Colours, *, width: int = WIDE) -> str:
    """Draw the distance of each BatchNorm layer to the source at the end of the stream."""
    drifting = [group for group in groups if drifts(group)]
    layers = list(drifting[0].runs[0].drift_per_layer) if drifting else []
    spans = [Span(depth + 0.5, depth + 1.5, layer) for depth, layer in enumerate(layers)]

    def at_end(run: RunRecord) -> list[float]:
        return [run.drift_per_layer.get(layer, math.nan) for layer in layers]

    series = [_series(group, colours, range(1, len(layers) + 1), group.mean_trace(at_end)) for group in drifting]
    title, x_label = "Drift of each layer at the end", "BatchNorm layer, from input to output"
    return lines(series, title=title, y_label="W₂ to the source", x_label=x_label, spans=spans, width=width)


def drifts(group: Group) -> bool:
    """Return whether a method has statistics that moved."""
    return any(value > 0 for run in group.runs for value in run.drift_over_time)


def bank_composition(counts: Sequence[int], classes: Sequence[str], *, width: int = WIDE) -> str:
    """Draw the number of samples per class in the bank; of more than 100 classes only those present."""
    names = [classes[c] if c < len(classes) else str(c) for c in range(len(counts))]
    shown = [c for c in range(len(counts)) if counts[c] or len(counts) <= 100]
    values, labels = [float(counts[c]) for c in shown], [names[c] for c in shown]
    return bars(values, labels=labels, title="The bank per class", y_label="samples", colour=ACCENT, width=width)


def comparison(found: Comparison, *, width: int = WIDE) -> str:
    """Draw our average errors over the values of a setting and, dashed, the paper's; values are equally spaced."""
    names = list(enumerate(found.values))
    spans = [Span(place - 0.5, place + 0.5, f"{found.name} {value}") for place, value in names]

    def series(label: str, errors: Sequence[float | None], colour: str, style: Style) -> Series:
        points = [(float(place), error) for place, error in enumerate(errors) if error is not None]
        return Series(label, tuple(x for x, _ in points), tuple(y for _, y in points), colour, style, dots=True)

    return lines(
        [series("ours", found.ours, ACCENT, "strong"), series(found.paper_label, found.theirs, NEUTRAL, "dashed")],
        title=found.title,
        x_label=found.name,
        y_label="average error %",
        x_ticks=names,
        spans=spans,
        from_zero=False,
        width=width,
    )


def _series(group: Group, colours: Colours, x: Sequence[float], y: tuple[float, ...]) -> Series:
    colour = colours[group.label]
    style: Style = "strong" if colour == ACCENT else "dashed" if colour == NEUTRAL else "plain"
    return Series(group.label, tuple(x), y, colour, style)
