import json
from pathlib import Path

import pytest

import resitta
from resitta.cli import main
from resitta.method import get_method
from resitta.methods.describe import describe


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def column(text: str, heading: str) -> str:
    """The words of a table's column, joined over the lines they are wrapped to."""
    lines = text.splitlines()
    head = next(line for line in lines if heading in line)
    start = head.index(heading)
    return " ".join(" ".join(line[start:] for line in lines).split())


@pytest.mark.parametrize("name", resitta.list_methods())
def test_a_method_is_shown_whole_at_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "methods", name)
    found = describe(get_method(name))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert " ".join(found["paper"].split()) in " ".join(text.split())
    for setting in found["settings"]:
        assert setting["meaning"] in column(text, "meaning")


def test_defaults_and_presets_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "methods", "resitta")
    assert "imagenet (eta=0.05)" in text
    for row in (["mature_age", "200"], ["anchor", "0.0"], ["reset_on_shift", "none"], ["drop_outdated", "true"]):
        assert row in [line.split()[:2] for line in text.splitlines()]
    assert "label_prior" in shown(capsys, "methods", "source")  # which every method has


def test_the_list_names_every_method_and_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "methods")
    firsts = [line.split()[0] for line in text.splitlines() if line.split()]
    assert set(resitta.list_methods()) <= set(firsts)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text + shown(capsys, "models")


def test_a_file_of_ones_own_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "own_method.py"
    mine = tmp_path / "mine.py"
    mine.write_text(example.read_text().replace('"slow-bn"', '"slow-bn-to-show"'))
    assert "slow-bn-to-show" in shown(capsys, "methods", f"{mine}:slow-bn-to-show")


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(shown(capsys, "methods", "tent", "--json")) == describe(resitta.methods.Tent)
    assert [method["name"] for method in json.loads(shown(capsys, "methods", "--json"))] == resitta.list_methods()
    models = {model["name"]: model for model in json.loads(shown(capsys, "models", "--json"))}
    assert models["wrn28x10"] == {
        "name": "wrn28x10",
        "description": "WRN-28-10, RobustBench 'Standard'",
        "classes": 10,
        "image_size": 32,
        "table": 1,
    }


def test_an_unknown_method_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "xyz"]) == 2
    assert "no method is called 'xyz'. Known: bn, " in capsys.readouterr().err
