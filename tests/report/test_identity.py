from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from resitta import method as registry
from resitta.bench.experiments import METHODS
from resitta.bench.protocol import Domain, Protocol
from resitta.bench.record import RunRecord
from resitta.bench.runner import Bench, Job
from resitta.conformance import tiny_network
from resitta.data.datasets import ArrayImages, ImageSet
from resitta.methods import Source
from resitta.report.identity import common_facts, experiment, facts, from_folder, labels, task, title_of

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


def test_facts_are_flat_and_leave_out_what_is_empty(make_run: MakeRun) -> None:
    identity = {"protocol": {"severity": 3, "per_domain": None}, "method": "tent", "settings": {"lr": 1}, "seedless": 0}
    assert facts(make_run(identity=identity)) == {"settings.lr": 0.001, "protocol.severity": 3, "seedless": 0}


def test_the_seed_and_the_folder_define_no_experiment(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    run = make_run(identity=make_identity())
    assert experiment(from_folder(replace(run, seed=7, seconds=1.0), "b")) == experiment(from_folder(run, "a"))
    assert experiment(replace(run, identity=make_identity(severity=1))) != experiment(run)


def test_a_task_does_not_depend_on_the_method(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    run = make_run("tent", identity=make_identity())
    alike = make_run(
        "bn", settings={}, identity=make_identity(code="x", method_source="x", version="2", precision="bf16")
    )
    assert task(alike) == task(run)
    for change in ({"severity": 1}, {"weights": "w"}, {"images": ["x"]}, {"model": "m"}, {"model_options": {"a": 1}}):
        assert task(make_run(identity=make_identity(**change))) != task(run)


def test_common_facts_are_what_all_runs_share(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    mild, severe = (make_run(identity=make_identity(severity=severity)) for severity in (3, 5))
    assert common_facts([mild])["severity"] == 3
    assert "severity" not in common_facts([mild, severe])
    assert common_facts([mild, severe])["model"] == "wrn28x10"
    assert not {"images", "corruptions", "settings.lr"} & set(common_facts([mild]))


@dataclass(frozen=True, kw_only=True)
class Titled(Source):
    name: ClassVar[str] = "titled"
    title: ClassVar[str] = "My <method>"


@dataclass(frozen=True, kw_only=True)
class Untitled(Source):
    name: ClassVar[str] = "untitled"


def test_the_papers_methods_have_the_papers_names(make_run: MakeRun) -> None:
    titles = ["Source", "BN", "PL", "TENT", "LAME", "CoTTA", "NOTE", "RoTTA", "ResiTTA"]
    assert [title_of(make_run(name)) for name in METHODS] == titles


def test_titles_are_not_inherited(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Titled, Untitled):
        monkeypatch.setitem(registry._methods, cls.name, cls)
    assert title_of(make_run("titled")) == "My <method>"
    assert title_of(make_run("untitled")) == "untitled"
    assert title_of(make_run("titled", title="As recorded")) == "As recorded"


def test_a_record_keeps_the_title_of_its_method(tmp_path: Path) -> None:
    images = ArrayImages(np.zeros((4, 32, 32, 3), np.uint8), np.arange(4) % 2)
    sets: dict[Domain, ImageSet] = {("fog", 5): images, ("snow", 5): images}
    bench = Bench(Protocol(corruptions=("fog", "snow")), tiny_network(), sets, tmp_path, torch.device("cpu"), {})
    runs = [bench.record(Job(method=method, seed=1)) for method in (Titled(), Untitled())]
    assert [title_of(run) for run in runs] == ["My <method>", "untitled"], "though neither is registered here"


def test_usual_facts_are_not_named(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    severities = (5, 5, 5, 3)
    runs = [make_run(m, identity=make_identity(severity=s)) for m, s in zip(METHODS, severities, strict=False)]
    assert labels(runs) == ["Source", "BN", "PL", "TENT (severity 3)"]


def test_lists_are_named_by_a_digest_where_nothing_else_differs(make_run: MakeRun) -> None:
    one, two = labels([make_run(identity={"layers": layers}) for layers in ([1, 2], [3])])
    assert one.startswith("TENT (layers ")
    assert one != two
    assert labels([make_run(identity={"layers": [1], "size": 1}), make_run(identity={"layers": [2], "size": 2})]) == [
        "TENT (size 1)",
        "TENT (size 2)",
    ]


def test_what_most_rows_have_is_named_where_some_lack_it(make_run: MakeRun, make_identity: MakeIdentity) -> None:
    runs = [make_run(settings={"lr": lr}, identity=make_identity(version="0.2.0")) for lr in (1, 2, 3)]
    old = make_run(settings={"lr": 1}, identity=make_identity())
    new = ["TENT lr=1 (version 0.2.0)", "TENT lr=2 (version 0.2.0)", "TENT lr=3 (version 0.2.0)"]
    assert labels([old, *runs]) == ["TENT lr=1", *new]
