from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from resitta import method
from resitta.bench.presets import METHODS
from resitta.bench.protocol import Domain, Protocol
from resitta.bench.record import RunRecord
from resitta.bench.runner import Bench, Job
from resitta.conformance import tiny_network
from resitta.data.datasets import ArrayImages, ImageSet
from resitta.methods import Source
from resitta.report.labels import labels, title_of

MakeRun = Callable[..., RunRecord]
MakeIdentity = Callable[..., dict[str, Any]]


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
        monkeypatch.setitem(method._methods, cls.name, cls)
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
