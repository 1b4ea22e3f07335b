"""The tables of Tide: beside others, and with parts left out."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from resitta.methods.recommend import Bed, Cell, Measurements

FOLDER = Path(__file__).parents[2] / "benchmarks"
USUAL: dict[str, Any] = {"severity": 5, "batch_size": 64, "images": 300, "domains": 3, "seeds": [1], "course": "once"}
OFF = {"label_prior": "none"}


@pytest.fixture
def table_tide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("table_tide")


def cell(method: str, error: float, **more: Any) -> Cell:
    return Cell(**{"bed": "cifar10-wrn16x1", "order": "ptta", "method": method, "error": error, **USUAL, **more})


def test_tide_stands_beside_the_best_of_each_kind(table_tide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(name="cifar10-wrn16x1", title="CIFAR-10, WRN-16-1", normalisation="BatchNorm", classes=10)
    cells = [cell("tide", 8.0), cell("tide", 29.0, changed=OFF), cell("bn", 40.0), cell("tribe", 38.8)]
    cells += [cell("lame", 47.0), cell("bn", 20.0, order="iid")]
    monkeypatch.setattr(table_tide, "everything", lambda: Measurements((bed,), tuple(cells)))
    rows = table_tide.errors().splitlines()[2:]
    assert rows == ["| CIFAR-10, WRN-16-1, PTTA | 29.0 | 38.8 (`tribe`) | 8.0 | 47.0 (`lame`) |"]
    more = cell("tide", 9.0, batch_size=1), cell("tide", 6.0, bed="cifar10-wrn28x10")
    monkeypatch.setattr(table_tide, "everything", lambda: Measurements((bed,), (*cells, *more)))
    assert table_tide.streams().splitlines()[2:] == [
        "| CIFAR-10, WRN-16-1, PTTA, 100 | 1 | – | 9.0 |",
        "| CIFAR-10, WRN-16-1, PTTA, 100 | 64 | 29.0 | 8.0 |",
        "| CIFAR-10, WRN-28-10, PTTA, 100 | 64 | – | 6.0 |",
    ]


def test_the_best_other_method_is_named_with_its_settings(table_tide: Any) -> None:
    assert table_tide.best({"tent": 31.0, "resitta anchor=0.1": 30.0}) == "30.0 (`resitta` with `anchor=0.1`)"


def test_the_ablation_has_a_row_for_each_part(table_tide: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "tide-ablation" / "iid"
    folder.mkdir(parents=True)
    parts = [OFF | part for part in table_tide.PARTS.values()]
    parts += list(table_tide.WITH_PRIOR.values())
    for number, part in enumerate(parts):
        run = {"method": "tide", "seed": 1, "settings": table_tide.DEFAULTS | part, "samples": 9, "seconds": 1.0}
        (folder / f"tide-1-{number}.json").write_text(json.dumps({"run": run | {"errors": [float(number)]}}))
    monkeypatch.setattr(table_tide, "RECORDS", tmp_path)
    monkeypatch.setattr("table_tools.RECORDS", tmp_path)
    rows = table_tide.ablation().splitlines()[2:]
    assert [row.split("|")[2].strip() for row in rows] == [f"{number}.0" for number in range(len(parts))]
