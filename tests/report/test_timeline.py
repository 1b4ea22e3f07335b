import re
from xml.etree import ElementTree

import numpy as np
import pytest

from resitta.report.axes import Span
from resitta.report.figures import NARROW, WIDE
from resitta.report.timeline import Timeline, caption, figure, legend, runs, table, typical_change

NAMES = ("cat", "<dog>", "frog")


@pytest.fixture
def timeline() -> Timeline:
    """Three domains; in each, the prior helps with more images than in the one before."""
    labels = np.arange(1200) // 60 % 3
    plain, corrected = labels.copy(), labels.copy()
    for domain, helped in enumerate((10, 50, 20, 70)):
        plain[domain * 300 : domain * 300 + helped] = 2 - labels[domain * 300]
    corrected[40] = 1
    spans = tuple(Span(300 * i, 300 * i + 300, name) for i, name in enumerate(("fog", "snow", "<frost>", "jpeg")))
    return Timeline(labels, plain, corrected, spans)


def test_a_part_knows_its_place(timeline: Timeline) -> None:
    part = timeline.part(290, 310).part(295, 400)
    assert (part.first, len(part.labels)) == (295, 15)
    assert [(span.start, span.stop, span.name) for span in part.spans] == [(295, 300, "fog"), (300, 310, "snow")]
    assert np.array_equal(part.plain, timeline.plain[295:310])


def test_errors_and_changes_are_counted(timeline: Timeline) -> None:
    part = timeline.part(0, 100)
    assert part.errors == (10.0, 1.0)
    assert part.helped.tolist() == list(range(10))
    assert part.harmed.tolist() == [40]
    assert part.relabelled == 11
    assert "10.0 % error without it, 1.0 % with it. It changed 11 labels: 10 became right, 1 became wrong, 0 went" in (
        caption(part)
    )


def test_the_typical_change_is_the_median(timeline: Timeline) -> None:
    assert typical_change(timeline).first == 200, "gains of 50, 20 and 70 images: the first change is the median"
    one = Timeline(timeline.labels, timeline.plain, timeline.corrected, timeline.spans[:1])
    assert typical_change(one).first == 0


def test_runs_of_a_class_make_the_table(timeline: Timeline) -> None:
    assert runs(np.array([], np.int64)) == []
    first, *_ = table(timeline.part(0, 70), NAMES)
    assert first == ("1", "fog", "cat", "60", "50 right, 10 frog", "59 right, 1 <dog>")


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_draws_each_run_in_the_colour_of_its_class(timeline: Timeline, width: int) -> None:
    piece = typical_change(timeline)
    svg = ElementTree.fromstring(figure(piece, NAMES, width=width))
    bands = [rect for rect in svg.iter("{http://www.w3.org/2000/svg}rect") if "--k" in rect.get("fill", "")]
    shown = piece if width == WIDE else piece.part(250, 350)
    expected = sum(len(runs(values)) for values in (shown.labels, shown.plain, shown.corrected))
    assert len(bands) == expected
    legend_of = dict(legend(piece, NAMES))
    for rect in bands:
        name = re.sub(r", \d+$", "", rect[0].text or "")
        assert legend_of[rect.get("fill", "")] == name
    words = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("true class", "predicted without the prior", "predicted with the prior", "snow"):
        assert label in words


def test_only_classes_that_occur_are_in_the_legend(timeline: Timeline) -> None:
    assert [name for _, name in legend(timeline.part(60, 120), NAMES)] == ["<dog>"]
