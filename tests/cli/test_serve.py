import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from resitta.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    return capsys.readouterr().err


RANDOM = ("wrn16x1", "--untrained")


def test_wrong_options_end_with_a_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    assert "give --size" in refusal(capsys, "torch.nn:Identity")
    assert "positive number" in refusal(capsys, *RANDOM, "--size", "0")
    assert "Did you mean 'wrn40x2'" in refusal(capsys, "wrn40", "--size", "32")
    assert "no method is called" in refusal(capsys, *RANDOM, "--method", "nothing")
    assert "choose another --host or --port" in refusal(capsys, *RANDOM, "--port", "99999")
    assert "found 2 names" in refusal(capsys, *RANDOM, "--labels", str(tmp_path / "names.txt"))
    assert "cannot be read" in refusal(capsys, *RANDOM, "--labels", str(tmp_path / "nowhere.txt"))
    assert "pass shadow= too" in refusal(capsys, *RANDOM, "--fallback")
    assert "shadow must be a share" in refusal(capsys, *RANDOM, "--shadow", "2")
    assert "keep must be >= 1" in refusal(capsys, *RANDOM, "--keep", "0")
    assert "readers must be at least 1" in refusal(capsys, *RANDOM, "--engine", "ray", "--readers", "0")
    assert "without --engine ray" in refusal(capsys, *RANDOM, "--engine", "ray", "--method", "tent")
    assert "leave out --shadow, or --fleet" in refusal(capsys, *RANDOM, "--fleet", "--shadow", "0.1")
    assert "leave out --engine ray, or --fleet" in refusal(capsys, *RANDOM, "--fleet", "--engine", "ray")
    assert "max_streams must be >= 1" in refusal(capsys, *RANDOM, "--fleet", "--max-streams", "0")
    assert "--max-streams 9 is an option of --fleet" in refusal(capsys, *RANDOM, "--max-streams", "9")
    monkeypatch.setenv("RESITTA_TOKEN", "short")
    assert "at least 16 characters" in refusal(capsys, *RANDOM)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nosuch", "there is no model 'nosuch'. Known: demo,"),
        ("dmeo", "there is no model 'dmeo'. Did you mean 'demo'?"),
        ("nosuch.py:make", "no file nosuch.py to take a model from"),
        ("torch.nn:Nothing", "torch.nn has no function 'Nothing'"),
        ("timm:nosuch", "timm has no model 'nosuch'"),
    ],
)
def test_a_model_that_does_not_exist_is_named_first(
    capsys: pytest.CaptureFixture[str], model: str, words: str, timm: None
) -> None:
    assert words in refusal(capsys, model)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with one model, whose pretrained weights know four classes."""

    def create_model(name: str, pretrained: bool = False, num_classes: int = 4) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 8, 2), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, num_classes))
        model.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "num_classes": 4}  # type: ignore[assignment]
        return model

    library = SimpleNamespace(create_model=create_model, is_model="toynet".__eq__, list_models=lambda: ["toynet"])
    monkeypatch.setitem(sys.modules, "timm", library)


def test_random_weights_are_not_served_by_mistake(capsys: pytest.CaptureFixture[str], timm: None) -> None:
    for model, remedy in (("wrn16x1", "give it a checkpoint"), ("timm:toynet", "pretrained=true")):
        shown = refusal(capsys, model, "--port", "99999")
        assert f"{model} has random weights" in shown
        assert remedy in shown
        assert "--untrained" in shown
        assert "choose another --host or --port" in refusal(
            capsys, model, "--untrained", "--size", "2", "--port", "99999"
        )
    pretrained = ["timm:toynet", "--size", "2", "--port", "99999", "--model-set", "pretrained=true"]
    assert "choose another --host or --port" in refusal(capsys, *pretrained)
