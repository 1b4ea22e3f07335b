"""`resitta.export` as a whole: what it writes, what it refuses, and that the adapter is as before."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import small_network, stream
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same
from resitta.errors import BadImages, BadSetting, NotExportable, NotSaved

IMAGES = stream(70)
SHAPE = (3, 10, 10)


class Around(nn.Module):
    """A network whose answer is changed by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.net, self.change = small_network(), change

    def forward(self, images: Tensor) -> Any:
        return self.change(self.net(images))


def run(path: Path, images: Tensor) -> Tensor:
    logits: Tensor = torch.export.load(path).module()(images)
    return logits


def paused(adapter: resitta.Adapter, images: Tensor) -> Tensor:
    with adapter.paused(), torch.no_grad():
        logits: Tensor = adapter(images)
    return logits


def test_the_result_names_what_was_written(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(IMAGES)
    made = resitta.export(adapter, tmp_path / "new" / "a.pt2")
    assert made.sha256 == hashlib.sha256(made.path.read_bytes()).hexdigest()
    assert made.sha256 in made.card.read_text("utf-8")
    assert made.difference <= 1e-4
    assert sorted(path.name for path in made.path.parent.iterdir()) == ["a.pt2", "a.pt2.md"]


@pytest.mark.parametrize("background", [False, True])
def test_the_adapter_continues_bit_for_bit(model: nn.Module, tmp_path: Path, background: bool) -> None:
    adapter = resitta.adapt(model, "resitta", guard=True, background=background)
    adapter(IMAGES)
    adapter.sync()
    before, generator = copy.deepcopy(adapter.state_dict()), torch.get_rng_state()
    with torch.inference_mode():
        resitta.export(adapter, tmp_path / "a.safetensors")
    assert same(adapter.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_what_does_not_predict_the_same_is_not_kept(tmp_path: Path) -> None:
    calls: list[int] = []

    def drift(logits: Tensor) -> Tensor:
        calls.append(1)
        return logits + 0.01 * len(calls)  # no program can hold that

    adapter = resitta.adapt(Around(drift), "source")
    (tmp_path / "a.pt2").write_text("of before")
    with pytest.raises(NotExportable, match=r"the torch.export program file does not predict what the model does"):
        resitta.export(adapter, tmp_path / "a.pt2", shape=SHAPE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt2"]
    assert (tmp_path / "a.pt2").read_text() == "of before"


def test_methods_that_cannot_be_exported_say_so(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match="tent does more than BatchNorm .* keep calling the adapter"):
        resitta.export(resitta.adapt(model, "tent"), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["logits", lambda answer: answer["logits"]])
def test_models_that_return_more_export_their_logits(tmp_path: Path, output: Any) -> None:
    adapter = resitta.adapt(Around(lambda logits: {"logits": logits, "twice": 2 * logits}), "resitta", output=output)
    adapter(IMAGES)
    made = resitta.export(adapter, tmp_path / "a.pt2")
    torch.testing.assert_close(run(made.path, IMAGES[:3]), paused(adapter, IMAGES[:3]), atol=1e-5, rtol=0)


def test_normalised_images_go_in_as_the_adapter_takes_them(model: nn.Module, tmp_path: Path) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
    adapter = resitta.adapt(model, "resitta", normalized=(mean, std))
    images = (IMAGES - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    adapter(images)
    made = resitta.export(adapter, tmp_path / "a.pt2")
    torch.testing.assert_close(run(made.path, images[:3]), paused(adapter, images[:3]), atol=1e-4, rtol=0)
    assert "mean [0.5, 0.4, 0.3], std [0.25, 0.2, 0.1]" in made.card.read_text("utf-8")


def test_half_precision_becomes_float32_but_in_a_checkpoint(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model.bfloat16(), "resitta")
    adapter(IMAGES.bfloat16())
    made = resitta.export(adapter, tmp_path / "a.pt2")
    expected = adapter.export().float()(IMAGES[:3])
    torch.testing.assert_close(run(made.path, IMAGES[:3]), expected, atol=1e-4, rtol=0)
    assert "float32 (the adapter computed in bfloat16)" in made.card.read_text("utf-8")
    resitta.export(adapter, tmp_path / "a.safetensors")
    state = load_file(tmp_path / "a.safetensors")
    assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.bfloat16}
    model.load_state_dict(state, strict=True)
    assert torch.equal(model(IMAGES[:3].bfloat16()), adapter.export()(IMAGES[:3].bfloat16()))


def test_a_compiled_model_is_exported_under_its_own_names(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(torch.compile(model, backend="eager"), "source")  # type: ignore[arg-type]
    made = resitta.export(adapter, tmp_path / "a.safetensors", shape=SHAPE)
    model.load_state_dict(load_file(made.path), strict=True)
    assert "Sequential, adapted" in made.card.read_text("utf-8")


def test_the_shape_must_be_known_and_suit(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "source")
    adapter(IMAGES)
    with pytest.raises(BadSetting, match=r"no images in a memory.*pass shape=\(channels, height, width\)"):
        resitta.export(adapter, tmp_path / "a.pt2")
    with pytest.raises(BadImages, match="refused images of shape"):
        resitta.export(adapter, tmp_path / "a.pt2", shape=(1, 10, 10))
    assert not list(tmp_path.iterdir())


def test_a_stream_of_a_fleet_is_exported_by_its_adapter(model: nn.Module, tmp_path: Path) -> None:
    fleet = resitta.fleet(model, "resitta")
    fleet["door"](IMAGES)
    made = resitta.export(fleet["door"].adapter, tmp_path / "a.safetensors")
    model.load_state_dict(load_file(made.path))
    torch.testing.assert_close(model(IMAGES), fleet["door"].export()(IMAGES), atol=1e-5, rtol=0)


def test_a_place_that_cannot_be_written_is_named(model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(NotSaved, match="could not be written"):
        resitta.export(resitta.adapt(model, "source"), tmp_path / "a.safetensors", shape=SHAPE)
