"""Which runs of the matrix are begun: what is missing, and further seeds of the best methods."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.test_recommendations import BED, FOLDER, measure

from resitta.bench.runner import Job
from resitta.method import create
from resitta.models import create as create_model


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("matrix")


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    """Arguments for the streams of `measure`, which has made records of three methods."""
    stream: dict[str, Any] = {"corruptions": ("clean",), "per_domain": None, "course": "once", "visits": 1}
    stream |= {"batch_size": 10, "corruption_seed": 0}
    measure(tmp_path, [("source", 1), ("neo", 1), ("bn", 1), ("bn", 2)])
    return argparse.Namespace(bed=BED, out=tmp_path, cache=tmp_path, seeds=[1, 2, 3], best=2, **stream)


def test_what_any_version_of_the_code_has_measured_is_known(matrix: Any, args: argparse.Namespace) -> None:
    records = matrix.known(args, "iid")
    assert [(record.method, record.seed) for record in records] == [("bn", 1), ("bn", 2), ("neo", 1), ("source", 1)]
    assert matrix.is_known(Job(method=create("neo"), seed=1), records)
    assert not matrix.is_known(Job(method=create("neo"), seed=2), records)
    assert not matrix.is_known(Job(method=create("neo", rate=0.5), seed=1), records)
    assert matrix.known(args, "ptta") == []
    args.course, args.visits = "recurring", 2
    assert matrix.known(args, "iid") == []


def test_the_best_get_all_seeds_one_seed_after_the_other(matrix: Any, args: argparse.Namespace) -> None:
    methods = [create(name) for name in ("source", "neo", "bn", "tent")]
    errors = {record.method: record.average for record in matrix.known(args, "iid") if record.seed == 1}
    best = sorted(errors, key=lambda name: (errors[name], [m.name for m in methods].index(name)))[:2]
    jobs = matrix.best(args, "iid", methods)
    assert [(job.method.name, job.seed) for job in jobs] == [(name, seed) for seed in (1, 2, 3) for name in best]
    assert matrix.best(args, "sorted", methods) == []


def test_an_entry_may_have_settings_of_its_own(matrix: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "load_network", lambda *_: create_model("wrn16x1"))
    entries = ["resitta", "resitta:anchor=0.1,reset_on_shift=2"]
    args = argparse.Namespace(bed=BED, beds=FOLDER, methods=entries, set=["resitta.capacity=32"])
    plain, anchored = matrix.suitable(args)
    assert (plain.anchor, anchored.anchor, anchored.reset_on_shift) == (0.0, 0.1, 2)
    assert plain.capacity == anchored.capacity == 32
