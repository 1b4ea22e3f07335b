"""What `resitta recommend` and the page of methods know, from records of tiny runs."""

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from resitta.bench.protocol import Protocol, open_domains
from resitta.bench.runner import Bench, Job
from resitta.data.datasets import ArrayImages
from resitta.method import create
from resitta.methods.recommend import Measurements
from resitta.models import create as create_model

FOLDER = Path(__file__).parents[2] / "benchmarks"
BED = "cifar10-wrn16x1"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The modules `recommendations` and `table_matrix`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    found: list[ModuleType] = [importlib.import_module(name) for name in ("recommendations", "table_matrix")]
    return found[0], found[1]


def measure(
    folder: Path, jobs: Sequence[tuple[str, int]], order: str = "iid", *, visits: int = 1, **settings: Any
) -> None:
    """Tiny runs with a network of random weights, as `beds.py` writes them."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    images = ArrayImages(pixels, np.arange(20) % 10)
    course: Any = "once" if visits == 1 else "recurring"
    stream: Any = {"order": order, "course": course, "visits": visits, "batch_size": 10}
    protocol = Protocol(corruptions=("clean",), **stream)
    torch.manual_seed(0)
    bench = Bench(
        protocol=protocol,
        model=create_model("wrn16x1"),
        sets=open_domains(protocol, images, cache=folder / "corrupted"),
        out=folder / BED / order,
        device=torch.device("cpu"),
        about={"bed": BED},
        circumstances={"processes_on_the_device": 1},
    )
    for name, seed in jobs:
        bench.record(Job(method=create(name, **settings), seed=seed))


def test_an_empty_folder_gives_empty_measurements(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    recommendations, table_matrix = scripts
    found = recommendations.measured(tmp_path)
    assert json.loads(recommendations.as_text(found)) == {"beds": [], "cells": []}
    assert table_matrix.heat_table(found, "ptta") == "*Not measured yet.*"


def test_records_become_cells(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    recommendations, _ = scripts
    measure(tmp_path, [("source", 1), ("neo", 1), ("neo", 2)])
    measure(tmp_path, [("neo", 1)], rate=0.5)
    measure(tmp_path, [("cofa", 1)], order="sorted")
    found = recommendations.measured(tmp_path)
    assert Measurements.of(json.loads(recommendations.as_text(found))) == found
    assert [(bed.name, bed.normalisation, bed.classes) for bed in found.beds] == [(BED, "BatchNorm", 10)]
    cells = {(cell.order, cell.label): cell for cell in found.cells}
    assert set(cells) == {("iid", "source"), ("iid", "neo"), ("iid", "neo rate=0.5"), ("sorted", "cofa")}
    neo, source = cells["iid", "neo"], cells["iid", "source"]
    assert (neo.seeds, neo.images, neo.domains, neo.batch_size) == ([1, 2], 20, 1, 10)
    records = [json.loads(path.read_text())["run"] for path in (tmp_path / BED / "iid").glob("neo-*.json")]
    plain = [run for run in records if run["settings"]["rate"] is None]
    assert neo.error == pytest.approx(np.mean([run["errors"][0] for run in plain]), abs=1e-3)
    assert neo.spread == pytest.approx(np.std([run["errors"][0] for run in plain], ddof=1), abs=1e-3)
    speed = json.loads((FOLDER / "records" / "speed-methods-wrn28x10-h200.json").read_text())["rows"]
    assert (source.cost, source.spread) == (round(speed["source"]["ratio"], 2), None)
    assert neo.cost == cells["iid", "neo rate=0.5"].cost == round(speed["neo"]["ratio"], 2)


def test_a_label_prior_costs_extra_and_what_has_no_row_has_no_cost(scripts: tuple[Any, Any]) -> None:
    cost, prior = scripts[0].cost, {"label_prior": "temporal"}
    assert cost("resitta", prior) > cost("resitta", {}) > cost("source", prior) > cost("source", {})
    assert cost("roid", prior) is cost("nothing", {}) is None


def test_source_statistics_are_no_part_of_a_row(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    measure(tmp_path, [("petta", 1)], source=torch.rand(20, 3, 32, 32))
    measure(tmp_path, [("petta", 2)], source=torch.rand(20, 3, 32, 32))
    (cell,) = scripts[0].measured(tmp_path).cells
    assert (cell.label, cell.seeds) == ("petta", [1, 2])


def test_a_record_in_a_wrong_folder_is_refused(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    measure(tmp_path, [("source", 1)])
    (tmp_path / BED / "iid").rename(tmp_path / BED / "ptta")
    with pytest.raises(SystemExit, match=f"is a record of {BED}, iid; move it to"):
        scripts[0].measured(tmp_path)


def test_of_two_versions_the_newer_counts(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    measure(tmp_path, [("source", 1)])
    (path,) = (tmp_path / BED / "iid").glob("*.json")
    content = json.loads(path.read_text())
    content |= {"version": "0.0.1", "made": "2020-01-01T00:00:00+00:00", "run": {**content["run"], "errors": [1.0]}}
    path.with_name("source-1-older.json").write_text(json.dumps(content))
    (cell,) = scripts[0].measured(tmp_path).cells
    assert cell.error != 1.0


def test_the_heat_table_marks_winners_and_sets_label_order_apart(scripts: tuple[Any, Any]) -> None:
    recommendations, table_matrix = scripts
    usual = {"bed": "b", "order": "iid", "course": "once", "severity": 5, "batch_size": 64, "images": 1500}
    usual |= {"domains": 15, "seeds": [1]}
    errors = {"source": 50.0, "tent": 75.0, "neo": 40.0, "lame": 30.0, "cofa": 60.0}
    cells = [recommendations.Cell(method=name, error=error, cost=1.5, **usual) for name, error in errors.items()]
    other = recommendations.Cell(method="neo", error=9.0, **{**usual, "batch_size": 1, "seeds": [1, 2], "spread": 0.5})
    bed = recommendations.Bed(name="b", title="B", normalisation="BatchNorm", classes=10)
    lines = table_matrix.heat_table(Measurements((bed,), (*cells, other)), "iid").splitlines()
    assert lines[0] == "| error (%) | B<br>1,500 images | B<br>1,500 images<br>batches of 1 | cost |"
    rows = {line.split("|")[1].strip(): [part.strip() for part in line.split("|")[2:-1]] for line in lines[2:-2]}
    assert list(rows) == ["`source`", "`tent`", "`neo`", "*with the order of labels*", "`lame`", "`cofa`"]
    assert rows["`source`"] == ['<span class="heat">50.0</span>', "–", "1.5×"]
    assert rows["`tent`"][0] == '<span class="heat" style="--worse: 0.50">75.0</span>'
    assert rows["`neo`"][0] == '<span class="heat" style="--better: 0.50"><b>40.0</b></span>'
    assert rows["`neo`"][1:] == ['<span class="heat"><b>9.0 ± 0.5</b></span>', "1.5×"]
    assert rows["`lame`"][0] == '<span class="heat" style="--better: 1.00"><b>30.0</b></span>'
    assert rows["`cofa`"][0] == '<span class="heat" style="--worse: 0.20">60.0</span>'
    assert lines[-1] == "Mean and standard deviation of 2 seeds where there is a ±. One seed elsewhere."


@pytest.mark.slow
def test_the_script_writes_and_checks(tmp_path: Path) -> None:
    measure(tmp_path / "matrix", [("source", 1)])

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        places = ["--records", str(tmp_path / "matrix"), "--data", str(tmp_path / "data.json")]
        command = [sys.executable, str(FOLDER / "recommendations.py"), *places, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    wrong = run("--check")
    assert wrong.returncode == 1
    assert "differs from the records" in wrong.stdout
    assert run().returncode == 0
    assert run("--check").returncode == 0
    assert len(json.loads((tmp_path / "data.json").read_text("utf-8"))["cells"]) == 1
