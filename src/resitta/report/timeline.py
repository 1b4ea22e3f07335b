"""A label prior at work: the classes along a piece of a stream, true and predicted, without and with the prior."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from resitta.report.axes import Span
from resitta.report.charts import smooth
from resitta.report.figures import WIDE, Band, Series, Style, lines
from resitta.report.palette import ACCENT, NEUTRAL, class_colour

Classes = NDArray[np.int64]
BEFORE, AFTER = 100, 200
"""How much of a stream is shown around a change of domain."""
NEIGHBOURS = 31
"""Over how many samples an error is averaged."""
WITHOUT, WITH = "without the prior", "with the prior"


@dataclass(frozen=True)
class Timeline:
    """Consecutive samples of a stream: their classes, true and predicted, without (`plain`) and with the prior.

    `spans` are the domains, in places of the stream; `first` is the place of the first sample.
    """

    labels: Classes
    plain: Classes
    corrected: Classes
    spans: tuple[Span, ...]
    first: int = 0

    def part(self, start: int, stop: int) -> "Timeline":
        """The samples from one place of the stream to another, as far as they are here."""
        start, stop = max(start, self.first), min(stop, self.first + len(self.labels))
        here = slice(start - self.first, stop - self.first)
        inside = [Span(max(s.start, start), min(s.stop, stop), s.name) for s in self.spans]
        spans = tuple(span for span in inside if span.start < span.stop)
        return Timeline(self.labels[here], self.plain[here], self.corrected[here], spans, start)

    @property
    def errors(self) -> tuple[float, float]:
        """The error without and with the prior, in per cent."""
        wrong = (predicted != self.labels for predicted in (self.plain, self.corrected))
        before, after = (100 * float(mistakes.mean()) for mistakes in wrong)
        return before, after

    @property
    def helped(self) -> Classes:
        """Which samples only the prior has right."""
        return np.flatnonzero((self.plain != self.labels) & (self.corrected == self.labels))

    @property
    def harmed(self) -> Classes:
        """Which samples only the prior has wrong."""
        return np.flatnonzero((self.plain == self.labels) & (self.corrected != self.labels))

    @property
    def relabelled(self) -> int:
        """How many samples got another class."""
        return int((self.plain != self.corrected).sum())


def typical_change(timeline: Timeline) -> Timeline:
    """The piece around that change of domain at which the prior gains the median of all changes.

    >>> labels = np.arange(900) // 50 % 3
    >>> days = tuple(Span(start, start + 300, f"day {start // 300}") for start in (0, 300, 600))
    >>> typical = typical_change(Timeline(labels, 0 * labels, labels, days))
    >>> typical.first, len(typical.labels)
    (200, 300)
    """
    changes = [round(span.start) for span in timeline.spans[1:]] or [timeline.first + BEFORE]
    pieces = [timeline.part(change - BEFORE, change + AFTER) for change in changes]
    ordered = sorted(pieces, key=lambda piece: piece.errors[0] - piece.errors[1])
    return ordered[(len(ordered) - 1) // 2]


def caption(timeline: Timeline) -> str:
    """What the prior changed in this piece, in numbers."""
    before, after = timeline.errors
    helped, harmed = len(timeline.helped), len(timeline.harmed)
    other = timeline.relabelled - helped - harmed
    counts = f"{helped} became right, {harmed} became wrong, {other} went from one wrong class to another"
    return (
        f"{len(timeline.labels)} consecutive images around that change of domain at which the prior gains the median "
        f"of all changes: {before:.1f} % error without it, {after:.1f} % with it. It changed {timeline.relabelled} "
        f"labels: {counts}. Both are of one run: “without” is what the same network says by itself. "
        f"The curves are errors over {NEIGHBOURS} neighbours. A narrow window shows the {BEFORE} images in the middle."
    )


def figure(timeline: Timeline, classes: Sequence[str], *, width: int = WIDE) -> str:
    """Draw a strip of true classes, two of predicted ones, and the error of both; a narrow figure shows the middle."""
    if width < WIDE:
        border = round(timeline.spans[-1].start)
        timeline = timeline.part(border - BEFORE // 2, border + BEFORE // 2)
    bands = [
        Band("true class", pieces(timeline.labels, timeline, classes), named=True),
        Band(f"predicted {WITHOUT}", pieces(timeline.plain, timeline, classes)),
        Band(f"predicted {WITH}", pieces(timeline.corrected, timeline, classes)),
    ]
    places = tuple(float(timeline.first + place + 0.5) for place in range(len(timeline.labels)))

    def error(label: str, predicted: Classes, colour: str) -> Series:
        wrong = [100.0 * mistake for mistake in predicted != timeline.labels]
        style: Style = "strong" if colour == ACCENT else "plain"
        return Series(label, places, smooth(wrong, NEIGHBOURS), colour, style)

    series = [error(WITHOUT, timeline.plain, NEUTRAL), error(WITH, timeline.corrected, ACCENT)]
    about = (
        f"Classes along {len(timeline.labels)} images, true and predicted, and the error; the table below has the runs"
    )
    return lines(series, title=about, y_label="error %", spans=timeline.spans, bands=bands, y_top=100, width=width)


def pieces(values: Classes, timeline: Timeline, classes: Sequence[str]) -> list[tuple[Span, str]]:
    """Runs of one class as named, coloured spans of the stream."""
    return [
        (Span(timeline.first + start, timeline.first + stop, classes[values[start]]), class_colour(int(values[start])))
        for start, stop in runs(values)
    ]


def runs(values: Classes) -> list[tuple[int, int]]:
    """Where runs of equal values begin and end.

    >>> runs(np.array([5, 5, 7]))
    [(0, 2), (2, 3)]
    """
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(pairwise(edges)) if len(values) else []


def legend(timeline: Timeline, classes: Sequence[str]) -> list[tuple[str, str]]:
    """The colour and the name of every class that occurs."""
    seen = np.unique(np.concatenate([timeline.labels, timeline.plain, timeline.corrected]))
    return [(class_colour(int(label)), classes[label]) for label in seen]


def table(timeline: Timeline, classes: Sequence[str]) -> list[tuple[str, ...]]:
    """The figure in words: for each run of a true class its domain, length, and what was predicted before and after."""
    rows = []
    for start, stop in runs(timeline.labels):
        piece = timeline.part(timeline.first + start, timeline.first + stop)
        true = int(piece.labels[0])
        cells = (_words(predicted, true, classes) for predicted in (piece.plain, piece.corrected))
        rows.append((f"{piece.first + 1:,}", piece.spans[0].name, classes[true], str(len(piece.labels)), *cells))
    return rows


def _words(predicted: Classes, true: int, classes: Sequence[str]) -> str:
    """How many are right, and the most common mistake."""
    mistakes = Counter(predicted[predicted != true].tolist()).most_common(1)
    right = f"{int((predicted == true).sum())} right"
    return right + "".join(f", {count} {classes[label]}" for label, count in mistakes)
