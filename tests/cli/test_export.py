from pathlib import Path

import pytest
import torch
from tests.conftest import small_network, stream
from tests.tools import OWN_METHOD

import resitta
from resitta.cli import main
from resitta.models import load_into
from resitta.models.user_code import load_method

IMAGES = stream(70)
MODEL = "tests.conftest:small_network"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of an Autosave, in an empty folder to write to."""
    monkeypatch.chdir(tmp_path)
    adapter = resitta.adapt(small_network(), "resitta", label_prior="temporal")
    adapter.add_callback(resitta.Autosave("state", updates=1))
    adapter(IMAGES)
    return Path("state")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["export", *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_newest_state_becomes_an_onnx_file(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(state), "--model", MODEL]) == 0
    shown = capsys.readouterr().out
    assert "state/state-0000000001.safetensors: resitta, samples 70, updates 1" in shown
    assert "written: adapted.onnx, whose logits differ from PyTorch's by at most" in shown
    assert "The label prior is not in it" in shown
    assert Path("adapted.onnx.md").read_text("utf-8").startswith("# adapted.onnx\n")


def test_a_checkpoint_fits_the_model(state: Path) -> None:
    out = Path("mine.safetensors")
    assert main(["export", str(state), "--model", MODEL, "--out", str(out)]) == 0
    expected = resitta.recover(small_network(), state).export()
    assert torch.equal(load_into(small_network(seed=3), out)(IMAGES), expected(IMAGES))


def test_what_goes_wrong_is_said_in_a_sentence(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, model = str(state / "state-0000000001.safetensors"), ("--model", MODEL)
    before = Path(file).read_bytes()
    assert "is the state itself" in refusal(capsys, str(state), *model, "--out", file)
    assert Path(file).read_bytes() == before
    assert "there is no state at nowhere" in refusal(capsys, "nowhere", *model)
    assert "other weights" in refusal(capsys, file, *model, "--model-set", "seed=5")
    assert "the format of a.bin is not known" in refusal(capsys, file, *model, "--out", "a.bin")
    resitta.adapt(small_network(), "tent").save("tent.safetensors")
    assert "tent does more than BatchNorm" in refusal(capsys, "tent.safetensors", *model, "--to", "checkpoint")
    resitta.adapt(small_network(), "source").save("source.safetensors")
    assert "--size 224" in refusal(capsys, "source.safetensors", *model, "--to", "checkpoint")
    assert main(["export", "source.safetensors", *model, "--to", "checkpoint", "--size", "10"]) == 0


def test_a_method_of_the_users_is_named_by_its_file(state: Path) -> None:
    Path("mine.py").write_text(OWN_METHOD.replace("FACTOR", "1"))
    resitta.adapt(small_network(), load_method("mine.py:mine")).save("mine.safetensors")
    arguments = ["mine.safetensors", "--model", MODEL, "--out", "own.safetensors", "--size", "10"]
    assert main(["export", *arguments, "--method", "mine.py:mine"]) == 0
    assert "(mine)" in Path("own.safetensors.md").read_text("utf-8")


def test_named_models_have_a_usual_side(state: Path) -> None:
    from resitta.demo.photographs import CHECKPOINT, MODEL, source_network

    resitta.adapt(source_network(), "source").save("wrn.safetensors")
    arguments = ["wrn.safetensors", "--model", MODEL, "--checkpoint", str(CHECKPOINT), "--to", "checkpoint"]
    assert main(["export", *arguments]) == 0
    assert "N×3×32×32" in Path("adapted.safetensors.md").read_text("utf-8")
