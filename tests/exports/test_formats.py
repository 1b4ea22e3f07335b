"""Files predict what the adapter predicts, for batches of any size: checked with the runtimes, without our own code."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.conftest import small_network, stream
from torch import Tensor, nn
from torch.nn import functional as F

import resitta
from resitta.demo.photographs import load_photographs, source_network
from resitta.errors import BadSetting, NotExportable
from resitta.exports import formats
from resitta.exports.formats import FORMATS, Checkpoint, Logits, Onnx, Program, captured, find_format
from resitta.models import VisionTransformer

ROOT = Path(__file__).parents[2]


class BasicBlock(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        shortcut = nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
        self.downsample = nn.Sequential(*(shortcut if before != width else ()))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.downsample(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def resnet18(width: int = 4, classes: int = 7) -> nn.Module:
    """ResNet-18 with narrow layers and statistics of images."""
    widths = [width * 2 ** (number // 2) for number in range(8)]
    blocks = [BasicBlock(b, w, 1 + (b != w)) for b, w in zip([width, *widths], widths, strict=False)]
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
    for seed in range(5):
        model(stream(32, seed, size=64))
    return model.eval()


def photographs() -> Tensor:
    return load_photographs().read(range(0, 2000, 8)).float() / 255


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "batch_norm": (small_network, lambda: stream(250)),
    "resnet18": (resnet18, lambda: stream(250, size=64)),
    "wrn16x1": (source_network, photographs),
}


@pytest.fixture(scope="module", params=NETWORKS)
def adapted(request: pytest.FixtureRequest) -> tuple[resitta.Adapter, Tensor]:
    """An adapter that has learned, and images of its stream."""
    make, draw = NETWORKS[request.param]
    torch.manual_seed(0)
    adapter, images = resitta.adapt(make(), "resitta", nu_b=0.5), draw()
    for batch in torch.split(0.5 * images, 64):
        adapter(batch)
    assert adapter.stats.mean_drift > 0.05
    return adapter, images


def predictions(adapter: resitta.Adapter, images: Tensor) -> Tensor:
    with adapter.paused(), torch.no_grad():
        logits: Tensor = adapter(images)
    return logits


def agree_on_any_batch(adapter: resitta.Adapter, images: Tensor, run: Callable[[Tensor], Tensor]) -> None:
    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(size=st.integers(1, 9), first=st.integers(0, 200))
    def check(size: int, first: int) -> None:
        batch = 0.5 * images[first : first + size]
        torch.testing.assert_close(run(batch), predictions(adapter, batch), atol=1e-4, rtol=0)

    check()


def test_an_onnx_file_predicts_what_the_adapter_does(adapted: tuple[resitta.Adapter, Tensor], tmp_path: Path) -> None:
    adapter, images = adapted
    resitta.export(adapter, tmp_path / "adapted.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(tmp_path / "adapted.onnx", options, providers=["CPUExecutionProvider"])
    (entry,), (answer,) = session.get_inputs(), session.get_outputs()
    assert (entry.name, entry.shape, answer.name) == ("images", ["batch", *images.shape[1:]], "logits")
    agree_on_any_batch(adapter, images, lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0]))


@pytest.mark.parametrize("adapted", ["batch_norm"], indirect=True, scope="module")
def test_a_program_predicts_what_the_adapter_does(adapted: tuple[resitta.Adapter, Tensor], tmp_path: Path) -> None:
    adapter, images = adapted
    resitta.export(adapter, tmp_path / "adapted.pt2")
    agree_on_any_batch(adapter, images, torch.export.load(tmp_path / "adapted.pt2").module())


def test_a_checkpoint_predicts_what_the_adapter_does(adapted: tuple[resitta.Adapter, Tensor], tmp_path: Path) -> None:
    adapter, images = adapted
    resitta.export(adapter, tmp_path / "adapted.safetensors")
    plain = adapter.export()
    for value in plain.state_dict().values():
        value.zero_()
    plain.load_state_dict(load_file(tmp_path / "adapted.safetensors"), strict=True)
    agree_on_any_batch(adapter, images, plain)


def test_a_client_needs_neither_torch_nor_resitta(tmp_path: Path) -> None:
    from PIL import Image

    adapter = resitta.adapt(small_network(), "resitta")
    images = torch.randint(256, (2, 3, 10, 10), dtype=torch.uint8)
    resitta.export(adapter, tmp_path / "adapted.onnx", shape=(3, 10, 10))
    names = [str(tmp_path / f"{number}.png") for number in range(len(images))]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(name)
    client = ROOT / "examples" / "clients" / "predict_onnx.py"
    code = (
        f"import runpy, sys; sys.argv = {[str(client), str(tmp_path / 'adapted.onnx'), *names]!r}; "
        f"runpy.run_path(sys.argv[0], run_name='__main__'); assert not {{'torch', 'resitta'}} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    shares = predictions(adapter, images.float() / 255).softmax(1)
    expected = [f"{name}: class {row.argmax()} ({row.max():.0%})" for name, row in zip(names, shares, strict=True)]
    assert done.stdout.splitlines() == expected, done.stderr


IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Head(nn.Module):
    """A linear layer after something that an exporter may not like."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(192, 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.function(images))
        return logits


def test_code_that_asks_for_the_length_of_a_batch_is_captured() -> None:
    model = Logits(Head(lambda x: x.reshape(len(x), -1)), None)
    more = torch.rand(7, 3, 8, 8)
    torch.testing.assert_close(captured(model, IMAGES).module()(more), model(more))
    vit = Logits(VisionTransformer(image_size=8, width=6, depth=1, heads=2, classes=5), None)
    torch.testing.assert_close(captured(vit, IMAGES).module()(more), vit(more))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.reshape(2, -1), "batch"),
        (lambda x: x.flatten(1) if x.mean() > 0.5 else -x.flatten(1), "[Dd]ata-dependent"),
    ],
)
def test_what_would_be_recorded_wrongly_is_refused(function: Callable[[Tensor], Tensor], reason: str) -> None:
    for kind in ("onnx", "torch"):
        with pytest.raises(NotExportable, match=rf"torch.export cannot capture this model: .*{reason}.*'checkpoint'"):
            FORMATS[kind].write(Logits(Head(function), None), IMAGES)


def exporter(dynamo: Exception | None, traced: Exception | None) -> Callable[..., Any]:
    """torch.onnx.export, one or both ways of which fail."""
    real = torch.onnx.export

    def export(*args: Any, **kwargs: Any) -> Any:
        error = dynamo if kwargs["dynamo"] else traced
        if error is not None:
            raise error
        return real(*args, **kwargs)

    return export


@pytest.mark.filterwarnings("ignore")
def test_the_older_exporter_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Logits(small_network(), None).eval()
    monkeypatch.setattr(torch.onnx, "export", exporter(RuntimeError("no such operator"), None))
    run = Onnx().open(Onnx().write(model, IMAGES), model)
    for size in (1, 2, 5):
        batch = torch.rand(size, 3, 8, 8)
        torch.testing.assert_close(run(batch), model(batch), atol=1e-5, rtol=0)
    monkeypatch.setattr(torch.onnx, "export", exporter(RuntimeError("no such operator"), TypeError("no dynamo")))
    with pytest.raises(NotExportable, match="torch.onnx cannot translate it: no such operator; use 'torch' or"):
        Onnx().write(model, IMAGES)


def test_files_do_not_hold_the_lines_of_the_model() -> None:
    model = Logits(Head(lambda x: x.flatten(1)), None)
    content = [captured(model, IMAGES).graph_module.print_readable(print_output=False)]
    content += [Program().write(model, IMAGES).decode("latin-1")]
    assert not any(os.fspath(Path(__file__).parent) in text for text in content)


def test_a_checkpoint_holds_tied_tensors_under_each_name_and_refuses_objects() -> None:
    tied = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4))
    tied[2].weight = tied[1].weight
    data = Checkpoint().write(Logits(tied, None), IMAGES)
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4))
    Checkpoint().open(data, Logits(fresh, None))
    torch.testing.assert_close(fresh.state_dict(), tied.state_dict(), rtol=0, atol=0)

    class Noted(nn.Flatten):
        def get_extra_state(self) -> str:
            return "note"

    with pytest.raises(NotExportable, match="holds '0._extra_state', which is no tensor"):
        Checkpoint().write(Logits(nn.Sequential(Noted()), None), IMAGES)


def test_formats_are_found_by_suffix_or_name() -> None:
    assert isinstance(find_format(Path("a.onnx"), None), Onnx)
    assert isinstance(find_format(Path("a.bin"), "torch"), Program)
    with pytest.raises(BadSetting, match=r"the format of a.bin is not known .*'torch' \(\.pt2\)"):
        find_format(Path("a.bin"), None)
    with pytest.raises(BadSetting, match="there is no format 'tflite'"):
        find_format(Path("a.onnx"), "tflite")


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        resitta.errors.MissingExtra, match=r"onnxscript is not installed; run: pip install .*\[export\]"
    ):
        Onnx().write(Logits(small_network(), None), IMAGES)


def test_the_reason_is_that_of_the_first_error() -> None:
    error = RuntimeError("step 1 of 3 failed")
    error.__cause__ = ValueError("no such axis.\nand much more")
    assert formats.reason_of(error) == "no such axis"
    assert formats.reason_of(KeyError()) == "KeyError"
