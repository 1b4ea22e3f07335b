from collections.abc import Callable
from typing import Any

import pytest

from resitta.bench.paper import PAPER
from resitta.bench.presets import TASKS
from resitta.bench.record import RunRecord, settings_of
from resitta.data.corruptions import CORRUPTIONS
from resitta.errors import BadData
from resitta.method import create
from resitta.report.against import dataset_of, notes, obstacles, printed_row
from resitta.report.groups import grouped

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
