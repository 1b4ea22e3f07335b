from collections.abc import Callable

import pytest

from resitta.bench.record import RunRecord
from resitta.errors import BadData
from resitta.report.groups import grouped, short
from resitta.streams.corruptions import CORRUPTIONS

MakeRun = Callable[..., RunRecord]


def test_seeds_come_together_in_the_given_order(make_run: MakeRun) -> None:
    groups = grouped([make_run("tent", seed=1), make_run("bn", seed=1), make_run("tent", seed=2)])
    assert [(group.label, len(group.runs)) for group in groups] == [("TENT", 2), ("BN", 1)]


def test_other_settings_make_another_group_named_by_what_differs(make_run: MakeRun) -> None:
    runs = [make_run("resitta", settings={"lr": 0.001, "eta": eta}) for eta in (0.01, 0.05)]
    assert [group.label for group in grouped(runs)] == ["ResiTTA eta=0.01", "ResiTTA eta=0.05"]


def test_means_over_seeds(make_run: MakeRun) -> None:
    one = make_run(errors=(10.0, 20.0), error_over_time=(0.0, 4.0))
    two = make_run(errors=(20.0, 40.0), error_over_time=(2.0, 8.0))
    (group,) = grouped([one, two])
    assert group.average == 22.5
    assert group.mean(lambda run: run.nll) == 0.75
    assert group.mean_trace(lambda run: run.error_over_time) == (1.0, 6.0)


def test_what_cannot_be_reported_together_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadData, match="no runs"):
        grouped([])
    with pytest.raises(BadData, match="different domains"):
        grouped([make_run(), make_run(errors=(1.0,))])
    (group,) = grouped([make_run(error_over_time=(1.0,)), make_run(error_over_time=(1.0, 2.0))])
    with pytest.raises(BadData, match="traces of 1, 2 points"):
        group.mean_trace(lambda run: run.error_over_time)


def test_short_names_of_the_paper_are_all_different() -> None:
    assert len({short(name) for name in (*CORRUPTIONS, "gaussian_blur", "speckle_noise")}) == 17
