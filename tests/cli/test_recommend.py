import json
from pathlib import Path
from typing import Any

import pytest
from tests.methods.test_recommend import BEDS, cell

from resitta.cli import main
from resitta.methods import recommend
from resitta.methods.recommend import Cell, Measurements

MODEL = """
from torch import nn
def make(norm="batch"):
    layer = {"batch": nn.BatchNorm2d(4), "group": nn.GroupNorm(2, 4)}[norm]
    return nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6))
def picky():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 50 * 50, 6))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "mine.py").write_text(MODEL)
    return f"{tmp_path / 'mine.py'}:make"


def measured(monkeypatch: pytest.MonkeyPatch, *cells: Cell) -> None:
    monkeypatch.setattr(recommend, "measurements", lambda: Measurements(BEDS if cells else (), cells))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["recommend", *arguments]) == 0
    return capsys.readouterr().out


def test_what_is_recommended_and_why(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best: dict[str, Any] = {"seeds": [1, 2, 3], "spread": 0.25, "cost": 3.71, "changed": {"reset_on_shift": 2}}
    measured(monkeypatch, cell(), cell("resitta", 36.8, **best), cell("cofa", 30.0, cost=1.02))
    text = shown(capsys, model)
    assert "Model: 6 classes, normalisation: BatchNorm." in text
    assert "Stream: temporally correlated: neighbours share classes (ptta), batches of 64, each domain once." in text
    assert "Nearest testbed: Small (small), 10 classes." in text
    assert "1,500 images, 15 corruptions of severity 5, batches of 64, each domain once, one to 3 seeds." in text
    row = next(line for line in text.splitlines() if line.strip().startswith("resitta reset_on_shift=2"))
    assert row.split()[2:] == ["36.8", "±", "0.2", "3.7", "x"]
    assert next(line for line in text.splitlines() if " source" in line).split() == [
        "source",
        "50.0",
        "not",
        "measured",
    ]
    assert "Recommended: resitta reset_on_shift=2 (36.8 % error at 3.7 times plain inference)." in text
    assert "cofa is better still (30.0 % error at 1.0 times plain inference), but only while neighbours" in text
    assert "Works, but was not measured there: bn" in text


def test_a_stream_unlike_what_was_measured(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, cell(), cell("bn", 60.0))
    text = shown(capsys, model, "--batch-size", "1", "--domains", "recurring")
    assert "Nothing nearer to your stream was measured." in text
    assert "With batches this small, methods that normalise with the batch's statistics do worse than here." in text
    assert "Recommended: no adaptation; nothing was better than the model as it is (50.0 % error)." in text


def test_without_measurements_it_says_what_works(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch)
    text = shown(capsys, model, "--model-set", "norm=group")
    assert "Not measured yet: there are no records of a network with such layers." in text
    assert "rotta does not work: rotta needs BatchNorm layers" in text
    assert "No recommendation without a measurement. `resitta bench` measures on your own images." in text
    measured(monkeypatch, cell())
    assert "Nothing was measured there in this order yet." in shown(capsys, model, "--order", "mixed")


def test_json_is_for_programs(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measured(monkeypatch, cell())
    found = json.loads(shown(capsys, model, "--json"))
    assert found["cells"][0]["method"] == "source"
    assert found["bed"]["name"] == "small"


def test_errors_say_what_to_do(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    picky = model.replace(":make", ":picky")
    assert main(["recommend", picky]) == 2
    assert "the number of classes of this model is not known: it takes square images" in (
        error := capsys.readouterr().err
    )
    assert "give it with --classes" in error
    assert main(["recommend", picky, "--classes", "6"]) == 0
    assert main(["recommend", model, "--classes", "1"]) == 2
    assert "classes must be a whole number from 2 on, found 1" in capsys.readouterr().err
    assert main(["recommend", model, "--batch-size", "0"]) == 2
    assert "batch_size must be >= 1, found 0" in capsys.readouterr().err
    assert main(["recommend", "wrn28"]) == 2
    assert "Did you mean 'wrn28x10'?" in capsys.readouterr().err
