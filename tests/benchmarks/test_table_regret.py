"""How far methods are from the best, and the errors of each visit."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.test_recommendations import BED, FOLDER, measure

from resitta.methods.recommend import Bed, Cell, Measurements

USUAL: dict[str, Any] = {"course": "once", "severity": 5, "batch_size": 64, "images": 1500, "domains": 15, "seeds": [1]}
BEDS = (
    Bed(name="a", title="A", normalisation="BatchNorm", classes=10),
    Bed(name="b", title="B", normalisation="LayerNorm", classes=10),
)


@pytest.fixture
def table_regret(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("table_regret")


def cells(order: str, bed: str = "a", **errors: float) -> list[Cell]:
    return [Cell(bed=bed, order=order, method=name, error=error, **USUAL) for name, error in errors.items()]


def rows(table: str) -> dict[str, list[str]]:
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in table.splitlines()}


def test_regret_is_the_distance_to_the_best_method_of_its_kind(table_regret: Any) -> None:
    found = [
        *cells("ptta", source=50.0, tent=70.0, neo=45.0, lame=20.0, cofa=21.5),
        *cells("iid", source=50.0, tent=30.0, neo=48.0, lame=55.0, cofa=54.0),
        *cells("iid", "b", source=40.0),
        *cells("sorted", source=50.0, tent=49.0),  # too few methods to count
        Cell(bed="a", order="ptta", method="bn", error=1.0, **{**USUAL, "course": "recurring"}),
    ]
    table = table_regret.regret_table(Measurements(BEDS, tuple(found)), batch_norm=True)
    assert rows(table) == {
        "above the best (points)": ["A", "worst regret"],
        "---": ["--:", "--:"],
        "`neo`": ["0.0 · – · – · 18.0 · –", "18.0"],
        "`source`": ["5.0 · – · – · 20.0 · –", "20.0"],
        "`tent`": ["25.0 · – · – · 0.0 · –", "25.0"],
        "*with the order of labels*": ["", ""],
        "`lame`": ["0.0 · – · – · 1.0 · –", "1.0"],
        "`cofa`": ["1.5 · – · – · 0.0 · –", "1.5"],
    }
    assert list(rows(table))[2:5] == ["`neo`", "`source`", "`tent`"]
    other = rows(table_regret.regret_table(Measurements(BEDS, tuple(found)), batch_norm=False))
    assert other["`source`"] == ["– · – · – · 0.0 · –", "0.0"]


def test_a_method_that_lacks_a_stream_is_left_out_and_still_is_the_best_of_the_others(table_regret: Any) -> None:
    found = [
        *cells("ptta", source=50.0, bn=60.0, tent=70.0, neo=45.0),
        *cells("iid", source=50.0, bn=35.0, tent=30.0),
    ]
    table = rows(table_regret.regret_table(Measurements(BEDS, tuple(found)), batch_norm=True))
    assert "`neo`" not in table
    assert table["`source`"] == ["5.0 · – · – · 20.0 · –", "20.0"]


def test_without_measurements_it_says_so(table_regret: Any) -> None:
    assert table_regret.regret_table(Measurements(), batch_norm=True) == "*Not measured yet.*"
    assert table_regret.recurring_table([], {}) == "*Not measured yet.*"


def test_recurring_domains_have_an_error_for_each_visit(table_regret: Any, tmp_path: Path) -> None:
    measure(tmp_path, [("source", 1), ("roid", 1)], "ptta", visits=4)
    runs = table_regret.read(tmp_path)
    table = rows(table_regret.recurring_table(runs, {BED: "A"}))
    errors = next(run.record.errors for run in runs if run.record.method == "roid")
    assert table["*A, 20 images of each corruption*"] == [""] * 6
    between = (errors[1 + 1] + errors[3 - 1]) / 2
    values = [errors[0], errors[1], between, errors[3]]
    mean = sum(errors) / 4
    assert table["`roid` (prior correction)"] == [*(f"{value:.1f}" for value in values), "4", f"{mean:.1f}"]
    assert "`source`" in table
