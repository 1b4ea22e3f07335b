import numpy as np

from resitta.monitor.events import Compared, FellBack, Labelled, Restarted, Resumed, Updated
from resitta.monitor.shadow import Agreement
from resitta.monitor.shadow.comparison import paired_accuracy
from resitta.serve.history import MOST_LATENCIES, AdaptationHistory, ShadowHistory, TrafficHistory

ONE = {"labels": np.array([1, 2]), "confidences": np.array([0.5, 0.7]), "entropies": np.array([1.0, 2.0])}


def test_seconds_are_summed_and_forgotten() -> None:
    now = 1000.2
    history = TrafficHistory(clock=lambda: now)
    history.add(**ONE, latency=0.010)
    now = 1000.9
    history.add(**ONE, latency=0.030)
    now = 1005.0
    history.add(np.array([2]), np.array([1.0]), np.array([0.0]), latency=0.001)
    first, second = history.points()
    expected = {"time": 1000, "requests": 2, "images": 4, "entropy": 1.5, "confidence": 0.6, "p50_ms": 20.0}
    assert expected.items() <= first.items()
    assert second["images"] == 1
    assert history.class_mix() == {1: 2, 2: 3}
    assert history.class_mix(2) == {2: 1}
    now = 1301.5
    assert [point["time"] for point in history.points()] == [1005]
    assert history.class_mix() == {}


def test_the_hour_has_a_point_for_each_ten_seconds() -> None:
    now = 1000.0
    history = TrafficHistory(clock=lambda: now)
    for second in range(25):
        now = 1000.0 + second
        history.add(**ONE, latency=0.001 * second)
    assert [(point["time"], point["images"]) for point in history.points("1h")] == [(1000, 20), (1010, 20), (1020, 10)]
    assert history.points("1h")[1]["p50_ms"] == 14.5
    now = 4599.0
    assert len(history.points("1h")) == 3
    assert history.points() == []
    now = 4621.0
    assert history.points("1h") == []


def test_memory_is_bounded() -> None:
    now = 0.0
    history = TrafficHistory(clock=lambda: now)
    for second in range(4000):
        now = float(second)
        history.add(np.array([second]), np.array([0.5]), np.array([1.0]), latency=0.5)
    for _ in range(MOST_LATENCIES + 5):
        history.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=0.5)
    assert (len(history.points()), len(history.points("1h"))) == (301, 360)
    assert len(history.class_mix()) == 62
    assert history.points()[-1]["requests"] == MOST_LATENCIES + 6
    assert max(len(line.at(now).latencies) for line in history._timelines.values()) == MOST_LATENCIES


def test_a_second_that_is_over_is_computed_once() -> None:
    now = 1000.0
    history = TrafficHistory(clock=lambda: now)
    for latency in (0.01, 0.02, 0.06):
        history.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=latency)
    (before,) = history.points()
    now = 1001.0
    history.add(np.array([1]), np.array([0.5]), np.array([1.0]), latency=0.5)
    assert history.points()[0] == before
    assert history.points()[0] is history.points()[0]


def test_updates_are_differences_and_a_rollback_is_none() -> None:
    now = 1000.0
    history = AdaptationHistory(clock=lambda: now)
    for second, updates, drift in ((0, 10, 0.1), (1, 12, 0.3), (2, 4, 0.2), (13, 5, 0.2)):
        now = 1000.0 + second
        history.add(updates, drift)
    assert [point["updates"] for point in history.points()] == [0, 2, 0, 1]
    expected = [{"time": 1000, "updates": 2, "drift": 0.3}, {"time": 1010, "updates": 1, "drift": 0.2}]
    assert history.points("1h") == expected
    history.add(6, None)
    assert history.points()[-1]["drift"] == 0.2


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
