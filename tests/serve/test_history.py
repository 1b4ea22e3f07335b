import re
from xml.etree import ElementTree

import numpy as np

from resitta.monitor.events import Compared, FellBack, Labelled, Restarted, Resumed, Updated
from resitta.monitor.shadow import Agreement
from resitta.monitor.shadow.comparison import paired_accuracy
from resitta.serve.history import ShadowHistory, TrafficHistory


def test_seconds_are_summed_and_forgotten() -> None:
    now = 1000.2
    history = TrafficHistory(seconds=10, clock=lambda: now)
    one = {"labels": np.array([1, 2]), "confidences": np.array([0.5, 0.7]), "entropies": np.array([1.0, 2.0])}
    history.add(**one, latency=0.010)
    now = 1000.9
    history.add(**one, latency=0.030)
    now = 1005.0
    history.add(np.array([2]), np.array([1.0]), np.array([0.0]), latency=0.001)
    first, second = history.points()
    expected = {"time": 1000, "requests": 2, "images": 4, "entropy": 1.5, "confidence": 0.6, "p50_ms": 20.0}
    assert expected.items() <= first.items()
    assert second["images"] == 1
    assert history.class_mix(last=60) == {1: 2, 2: 3}
    assert history.class_mix(last=2) == {2: 1}
    now = 1011.5
    assert [point["time"] for point in history.points()] == [1005]


def test_a_second_that_is_over_costs_no_memory_and_no_time() -> None:
    now = 1000.0
    history = TrafficHistory(clock=lambda: now)
    for latency in (0.01, 0.02, 0.06):
        history.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=latency)
    (before,) = history.points()
    now = 1001.0
    history.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=0.5)
    assert history.points()[0] == before
    assert history.points()[0] is history.points()[0]
    assert [len(second.latencies) for second in history._seconds] == [0, 1]


def test_charts_end_now_and_break_where_nothing_was_asked() -> None:
    now = 1000.0
    history = TrafficHistory(clock=lambda: now)
    assert history.figures(520) == {}
    for second in (1000.0, 1001.0, 1010.0, 1011.0, 1012.5):
        now = second
        history.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=0.02)
    drawn = history.figures(520)
    assert set(drawn) == {"entropy", "confidence", "throughput", "latency"}
    root = ElementTree.fromstring(drawn["latency"])
    paths = [path for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("data-label")]
    assert [path.get("data-label") for path in paths] == ["median", "99 %"]
    assert re.sub(r"[-\d.,]+", "", paths[0].get("d", "")) == "MhLMhL", "the second at hand is not complete"
    assert root.get("aria-label") == "latency: now 20 and 20"
    assert {"60 s ago", "30 s ago", "now"} <= set(root.itertext())
    assert history.figures(520) is drawn
    now = 1013.0
    assert history.figures(520) is not drawn
    assert len(history._drawn) == 1


def test_the_comparison_with_the_source_is_kept_point_by_point() -> None:
    history, agreement = ShadowHistory(clock=lambda: 7.0), Agreement(64, 0.25, 0.9, 0.8, 0.1, 0.2)
    accuracy = paired_accuracy(both=5, adapted_only=1, source_only=3, neither=1)
    assert accuracy is not None
    history.on_event(None, Updated(samples=1, updates=1, entropy=0.1, drift=0.1, turnover=None))
    history.on_event(None, Compared(samples=64, running=agreement, recent=agreement))
    history.on_event(None, Labelled(samples=65, running=accuracy, recent=accuracy))
    history.on_event(None, FellBack(samples=66, recent=accuracy))
    history.on_event(None, Resumed(samples=67, recent=accuracy))
    first, second, third, fourth = history.points()
    assert first.items() >= {"time": 7.0, "samples": 64, "disagreement": 0.25, "falling_back": False}.items()
    assert second.items() >= {"disagreement": 0.25, "labelled": 10, "source_accuracy": 0.8}.items()
    assert second["difference_low"] < second["difference_value"] < second["difference_high"]
    assert (third["falling_back"], fourth["falling_back"]) == (True, False)
    history.on_event(None, Restarted(samples=0))
    history.on_event(None, Compared(samples=64, running=agreement, recent=agreement))
    assert "labelled" not in history.points()[-1]
