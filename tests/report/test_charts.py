import math
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

from resitta.bench.record import RunRecord
from resitta.report import charts
from resitta.report.groups import grouped
from resitta.report.palette import colours
from resitta.report.paper_comparison import Comparison

MakeRun = Callable[..., RunRecord]


def labels(svg: str) -> list[str]:
    return [path.get("data-label", "") for path in ElementTree.fromstring(svg).iter() if path.get("data-label")]


def test_smooth_is_a_centred_mean_that_skips_nan() -> None:
    assert charts.smooth([1.0, math.nan, 5.0, 9.0], 3) == (1.0, 3.0, 7.0, 7.0)
    assert charts.smooth([1.0, 2.0], 0) == (1.0, 2.0)
    assert charts.smooth([], 3) == ()
    assert math.isnan(charts.smooth([math.nan], 1)[0])


def test_spans_follow_the_borders() -> None:
    spans = charts.spans_of(("snow", "jpeg_compression"), (0, 30), 100)
    assert [(s.start, s.stop, s.name) for s in spans] == [(0, 30, "snow"), (30, 100, "jpeg")]
    spans = charts.spans_of(("snow", "fog", "snow", "fog"), (0, 10, 20, 30), 40)
    assert [(s.start, s.stop, s.name) for s in spans] == [(0, 20, "visit 1"), (20, 40, "visit 2")]
    assert charts.spans_of(("snow", "fog"), (), 40) == ()


def test_figures_hold_the_methods_that_have_something_to_show(make_run: MakeRun) -> None:
    still = make_run("source", drift_over_time=(0.0, 0.0, 0.0), drift_per_layer={})
    groups = grouped([still, make_run("rotta"), make_run("resitta")])
    colour = colours(groups)
    assert set(labels(charts.error_over_time(groups, colour, ()))) == {"Source", "RoTTA", "ResiTTA"}
    assert set(labels(charts.drift_over_time(groups, colour, ()))) == {"RoTTA", "ResiTTA"}
    assert set(labels(charts.drift_per_layer(groups, colour))) == {"RoTTA", "ResiTTA"}
    assert "Nothing was measured." in charts.drift_per_layer(groups[:1], colour)


def test_a_layer_that_a_method_lacks_is_a_gap(make_run: MakeRun) -> None:
    groups = grouped([make_run("rotta"), make_run("note", drift_per_layer={"bn2": 0.3})])
    assert set(labels(charts.drift_per_layer(groups, colours(groups)))) == {"RoTTA", "NOTE"}


def test_a_comparison_stands_beside_the_papers() -> None:
    found = Comparison(
        title="t",
        name="eta",
        values=("0.01", "0.03", "0.1"),
        ours=(22.0, 23.0, None),
        theirs=(22.5, None, 21.0),
        dataset="x",
    )
    svg = charts.comparison(found)
    assert set(labels(svg)) == {"ours", "paper"}
    assert set(labels(charts.comparison(replace(found, model="wrn28x10")))) == {"ours", "paper, wrn28x10"}
    assert set(labels(charts.comparison(replace(found, theirs=(None,) * 3)))) == {"ours"}
    for value in ("0.01", "0.03", "0.1"):
        assert f">{value}<" in svg


def test_of_many_classes_only_those_present_are_drawn() -> None:
    many = charts.bank_composition([0] * 500 + [2] * 3 + [0] * 500, [])
    few = charts.bank_composition([0, 2, 0], ["cat", "dog"])
    assert many.count("<rect") == 3
    assert few.count("<rect") == 3
    assert "dog: 2" in few


def test_only_streams_of_one_length_share_a_figure(make_run: MakeRun) -> None:
    groups = grouped([make_run("bn"), make_run("tent", samples=400), make_run("resitta")])
    assert [group.label for group in charts.same_stream(groups, groups[2])] == ["BN", "ResiTTA"]
