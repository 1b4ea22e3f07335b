import re
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest

from resitta.report.marks import SHAPES
from resitta.serve.charts import MEANINGS, Charts
from resitta.serve.events import Kind, LogEntry
from resitta.serve.history import AdaptationHistory, TrafficHistory

SVG = "{http://www.w3.org/2000/svg}"


class Clock:
    """A time that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def charts(clock: Clock, *events: LogEntry, bound: float | None = None) -> Charts:
    """Charts of two histories that have seen nothing."""
    return Charts(
        TrafficHistory(clock=clock), AdaptationHistory(clock=clock), lambda: list(events), bound=bound, clock=clock
    )


def answer(found: Charts) -> None:
    found.traffic.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=0.02)


def lines(svg: str) -> dict[str, str]:
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    return {path.get("data-label", ""): path.get("d", "") for path in paths if path.get("data-label")}


def test_charts_end_now_and_break_where_nothing_was_asked() -> None:
    clock = Clock()
    found = charts(clock)
    assert set(found.figures(520)) == {"legend"}
    for clock.now in (1000.0, 1001.0, 1010.0, 1011.0, 1012.5):
        answer(found)
    drawn = found.figures(520)
    assert set(drawn) == {"entropy", "confidence", "throughput", "latency", "legend"}
    root = ElementTree.fromstring(drawn["latency"])
    assert list(lines(drawn["latency"])) == ["median", "99 %"]
    assert re.sub(r"[-\d.,]+", "", lines(drawn["latency"])["median"]) == "MhLMhL", "the second at hand is not complete"
    assert root.get("aria-label") == "latency: now 20 and 20"
    assert {"60 s ago", "30 s ago", "now"} <= set(root.itertext())
    assert found.figures(520) is drawn
    clock.now = 1013.0
    assert found.figures(520) is not drawn
    assert len(found._drawn) == 1


def test_an_hour_is_drawn_in_images_per_second() -> None:
    clock = Clock()
    found = charts(clock)
    for clock.now in range(1000, 1100):
        answer(found)
        answer(found)
    drawn = ElementTree.fromstring(found.figures(520, "1h")["throughput"])
    assert drawn.get("aria-label") == "throughput: now 2"
    assert "10 min ago" in set(drawn.itertext())


@pytest.mark.parametrize(("drift", "shown"), [(0.1, False), (0.8, True)])
def test_the_bound_of_the_drift_is_a_line_or_a_note(drift: float, shown: bool) -> None:
    clock = Clock()
    found = charts(clock, bound=1.5)
    for clock.now in range(1000, 1005):
        found.adaptation.add(3, drift)
    drawn = found.figures(520)["drift"]
    assert ("bound" in lines(drawn)) == shown
    assert ("the bound is 1.5" in drawn) != shown
    assert "bound" not in found.figures(520)["legend"]


def test_what_happened_is_marked_by_shapes_and_updates_by_a_strip() -> None:
    clock = Clock()
    entries = LogEntry(1002.5, "domain", "another <domain>"), LogEntry(1003.0, "pause", "learning paused")
    found = charts(clock, *entries, LogEntry(10.0, "guard", "long ago"))
    for clock.now in range(1000, 1010):
        found.adaptation.add(int(clock.now) // 5, 0.1)
    root = ElementTree.fromstring(found.figures(520)["drift"])
    marks = {mark.get("data-name"): mark for mark in root.iter(f"{SVG}g") if "mark" in mark.get("class", "")}
    assert set(marks) == {"another <domain>", "learning paused"}
    outlines = {next(mark.iter(f"{SVG}path")).get("d") for mark in marks.values()}
    assert outlines == {SHAPES["domain"], SHAPES["pause"]}
    assert len([rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "count"]) == 1


def test_every_kind_of_event_has_a_shape_and_a_meaning() -> None:
    assert set(get_args(Kind)) == set(SHAPES) == set(MEANINGS)
    assert len(set(SHAPES.values())) == len(SHAPES)
