from collections.abc import Callable
from dataclasses import replace
from typing import Any

from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord, settings_of
from resitta.registry import create
from resitta.report.experiments import changed, find_ablation, find_sweeps, main_rows

MakeRun = Callable[..., RunRecord]


def with_settings(run: RunRecord, **settings: Any) -> RunRecord:
    return replace(run, settings=settings_of(create("resitta", preset="cifar10", **settings)))


def test_sweeps_hold_the_usual_run_and_those_that_differ_in_one_setting(make_run: MakeRun) -> None:
    one = make_run("resitta")
    runs = [with_settings(one), with_settings(one, eta=0.05), with_settings(one, eta=0.05, lr=0.1)]
    (found,) = find_sweeps(runs, "cifar10")
    assert found.name == "eta"
    ours = dict(zip(found.values, found.ours, strict=True))
    assert {value for value, error in ours.items() if error is not None} == {"0.01", "0.05"}
    assert tuple(error for error in found.theirs if error is not None) == PAPER.sweep("eta").averages["cifar10"]


def test_the_ablation_is_recognised_by_its_settings(make_run: MakeRun) -> None:
    one = make_run("resitta")
    runs = [with_settings(one), with_settings(one, norm="rbn")]
    (found,) = find_ablation(runs, "cifar10")
    assert dict(zip(found.values, found.ours, strict=True))["RBN"] == one.average
    assert found.ours.count(None) == 4
    assert find_ablation(runs[:1], "cifar10") == []


def test_the_main_table_keeps_the_usual_settings(make_run: MakeRun) -> None:
    one = make_run("resitta")
    usual, other = with_settings(one), with_settings(one, eta=0.05)
    assert main_rows([make_run("tent"), usual, other], "cifar10")[1:] == [usual]
    assert changed(other, "cifar10") == {"eta": 0.05}
