from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from resitta.bench.experiments import TASKS
from resitta.bench.paper import PAPER
from resitta.bench.record import RunRecord, settings_of
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import BadData
from resitta.method import create
from resitta.report.groups import grouped
from resitta.report.identity import from_folder
from resitta.report.paper_comparison import (
    Comparison,
    changed,
    dataset_of,
    find_ablation,
    find_sweeps,
    main_rows,
    notes,
    obstacles,
    printed_row,
)

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


@pytest.fixture
def usual(make_run: MakeRun, make_identity: MakeIdentity) -> Callable[..., RunRecord]:
    """A run of the paper's CIFAR-10 task, but for the changes given."""

    def make(method: str = "tent", **changes: Any) -> RunRecord:
        settings = settings_of(create(method, preset="cifar10")) | changes.pop("settings", {})
        errors = PAPER.table1["tent"].errors
        identity = make_identity(**changes)
        return make_run(method, errors, domains=CORRUPTIONS, samples=150_000, identity=identity, settings=settings)

    return make


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"severity": 3}, "severity 3 (paper: 5)"),
        ({"order": "iid"}, "order iid (paper: ptta)"),
        ({"order": "sorted"}, "order sorted (paper: ptta)"),
        ({"batch_size": 16}, "batch_size 16 (paper: 64)"),
        ({"per_domain": 500}, "per_domain 500 (paper: all)"),
        ({"course": "recurring", "visits": 2}, "course recurring (paper: once)"),
        ({"corruptions": ("fog", "snow")}, "other domains than the fifteen corruptions in the paper's order"),
        ({"data": "CIFAR-100-C"}, "data CIFAR-100-C (paper: cifar10)"),
        ({"model": "wrn16x1"}, "model wrn16x1 (paper: wrn28x10)"),
        ({"model": None, "bed": "cifar10-wrn16x1"}, "model wrn16x1 (paper: wrn28x10)"),
        ({"precision": "bf16"}, "precision bf16"),
        ({"untrained": True}, "untrained weights"),
        ({"settings": {"lr": 0.5}}, "lr=0.5"),
        ({"protocol": {}}, "their protocol is not recorded"),
    ],
)
def test_only_what_is_comparable_is_compared(
    usual: Callable[..., RunRecord], change: dict[str, Any], reason: str
) -> None:
    run = usual(**change)
    assert obstacles(run, "cifar10")[0] == reason
    groups = grouped([run])
    assert printed_row(groups[0], PAPER.table1) is None
    assert notes(groups, PAPER.table1)[0].startswith("No paper numbers for TENT: ")
    assert reason in notes(groups, PAPER.table1)[0]


def test_the_papers_own_task_is_compared(usual: Callable[..., RunRecord]) -> None:
    run = usual(corruption_seed=3, precision="exact")
    assert obstacles(run, "cifar10") == []
    groups = grouped([run])
    assert printed_row(groups[0], PAPER.table1) is PAPER.table1["tent"]
    assert notes(groups, PAPER.table1) == ()
    assert notes(groups, {}) == ()


def test_imagenet_is_sorted_and_its_images_are_counted(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    identity = make_identity(order="sorted", model=TASKS["imagenet"].model, data="imagenet-val")
    run = make_run("source", (80.0,) * 15, settings={}, domains=CORRUPTIONS, samples=30_000, identity=identity)
    assert obstacles(run, "imagenet") == []
    assert notes(grouped([run]), PAPER.table3) == ("Here 2,000 images of each corruption, in the paper 5,000.",)


def test_methods_of_ones_own_have_no_paper_row_and_need_no_note(make_run: MakeRun) -> None:
    groups = grouped([make_run("mine")])
    assert printed_row(groups[0], PAPER.table1) is None
    assert notes(groups, PAPER.table1) == ()


def test_another_table_is_refused() -> None:
    assert [dataset_of(PAPER.main(name)) for name in ("cifar10", "imagenet")] == ["cifar10", "imagenet"]
    with pytest.raises(BadData, match="no main table"):
        dataset_of({"tent": PAPER.table1["tent"]})


ETAS = (0.01, 0.05)


def with_settings(run: RunRecord, preset: str = "cifar10", **settings: Any) -> RunRecord:
    return replace(run, settings=settings_of(create("resitta", preset=preset, **settings)))


@pytest.fixture
def one(make_run: MakeRun, make_identity: MakeIdentity) -> RunRecord:
    """A run of the paper's CIFAR-10 task."""
    return make_run("resitta", (20.0,) * 15, domains=CORRUPTIONS, samples=150_000, identity=make_identity())


def averages(found: Comparison) -> dict[str, float]:
    return {value: error for value, error in zip(found.values, found.ours, strict=True) if error is not None}


def test_sweeps_hold_the_usual_run_and_those_that_differ_in_one_setting(one: RunRecord) -> None:
    runs = [with_settings(one), with_settings(one, eta=0.05), with_settings(one, eta=0.05, lr=0.1)]
    (found,) = find_sweeps(runs, "cifar10")
    assert found.name == "eta"
    assert set(averages(found)) == {"0.01", "0.05"}
    assert tuple(error for error in found.theirs if error is not None) == PAPER.sweep("eta").averages["cifar10"]


def test_the_ablation_is_recognised_by_its_settings(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    task = {"identity": make_identity(model="resnext29", data="CIFAR-100-C"), "domains": CORRUPTIONS}
    one = make_run("resitta", (30.0,) * 15, samples=150_000, **task)
    runs = [with_settings(one, "cifar100"), with_settings(one, "cifar100", norm="rbn")]
    (found,) = find_ablation(runs, "cifar100")
    assert averages(found) == {"full": 30.0, "RBN": 30.0}
    assert found.theirs == tuple(row.average for row in PAPER.table4)
    assert find_ablation(runs[:1], "cifar100") == []


def test_the_papers_ablation_is_for_one_data_set_only(one: RunRecord) -> None:
    (found,) = find_ablation([with_settings(one), with_settings(one, norm="rbn")], "cifar10")
    assert (found.values, found.ours) == (("full", "RBN"), (20.0, 20.0))
    assert not found.has_paper


def test_other_protocols_have_no_curve_of_the_paper(one: RunRecord, make_identity: MakeIdentity) -> None:
    mild = replace(one, identity=make_identity(severity=3))
    (found,) = find_sweeps([with_settings(mild), with_settings(mild, eta=0.05)], "cifar10")
    assert found.values == ("0.01", "0.05")
    assert not found.has_paper


def test_another_network_is_named(one: RunRecord, make_identity: MakeIdentity) -> None:
    small = replace(one, identity=make_identity(model="wrn16x4"))
    (found,) = find_sweeps([with_settings(small), with_settings(small, eta=0.05)], "cifar10")
    assert found.has_paper
    assert found.paper_label == "paper, wrn28x10"


def test_a_sweep_mixes_no_other_experiments(one: RunRecord, make_identity: MakeIdentity) -> None:
    mild = replace(one, errors=(5.0,) * 15, identity=make_identity(severity=3))
    runs = [with_settings(one), with_settings(one, eta=0.05), with_settings(mild), with_settings(mild, eta=0.1)]
    severe, gentle = find_sweeps(runs, "cifar10")
    assert averages(severe) == {"0.01": 20.0, "0.05": 20.0}
    assert averages(gentle) == {"0.01": 5.0, "0.1": 5.0}
    assert (severe.title, gentle.title) == ("Sweep of eta (severity 5)", "Sweep of eta (severity 3)")


def test_values_of_a_sweep_are_compared_on_common_seeds(one: RunRecord) -> None:
    lucky = replace(one, seed=2, errors=(0.0,) * 15)
    (found,) = find_sweeps([with_settings(one), with_settings(lucky), with_settings(one, eta=0.05)], "cifar10")
    assert averages(found) == {"0.01": 20.0, "0.05": 20.0}


def test_folders_that_contradict_each_other_make_two_sweeps(one: RunRecord) -> None:
    other = replace(one, errors=(5.0,) * 15)
    runs = [from_folder(with_settings(run, eta=eta), name) for run, name in ((one, "a"), (other, "b")) for eta in ETAS]
    assert [averages(found) for found in find_sweeps(runs, "cifar10")] == [
        {"0.01": 20.0, "0.05": 20.0},
        {"0.01": 5.0, "0.05": 5.0},
    ]
    apart = [from_folder(with_settings(one, eta=eta), name) for eta, name in zip(ETAS, "ab", strict=True)]
    assert [averages(found) for found in find_sweeps(apart, "cifar10")] == [{"0.01": 20.0, "0.05": 20.0}]


def test_the_main_table_keeps_the_usual_settings(make_run: MakeRun) -> None:
    one = make_run("resitta")
    usual, other = with_settings(one), with_settings(one, eta=0.05)
    assert main_rows([make_run("tent"), usual, other], "cifar10")[1:] == [usual]
    assert changed(other, "cifar10") == {"eta": 0.05}
