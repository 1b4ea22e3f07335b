"""In which order a batch is predicted, looked at and learned from."""

import os
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.errors import BadImages, NotExportable
from resitta.inputs import ROUNDING, PixelRange, check_form, predict_early
from resitta.method import Learner
from resitta.monitor.callbacks import Callback
from resitta.training.network import Network

NETWORK = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
NORMALIZED = Network(nn.Conv2d(3, 4, 3), normalized=((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))


@settings(max_examples=100, deadline=None)
@given(low=st.floats(-3, 3), high=st.floats(-3, 3))
def test_exactly_the_unit_interval_is_taken(low: float, high: float) -> None:
    images = torch.full((2, 3, 4, 4), 0.5)
    images[0, 0, 0, 0], images[1, 2, 3, 3] = low, high
    inside = all(-ROUNDING <= float(v) <= 1 + ROUNDING for v in (images[0, 0, 0, 0], images[1, 2, 3, 3]))
    for network, given_images in ((NETWORK, images), (NORMALIZED, (images - 0.5) / 0.25)):
        if inside:
            assert PixelRange(given_images, network).check("raise") is None
        elif abs(min(low, 0)) > 2 * ROUNDING or max(high, low) > 1 + 2 * ROUNDING:
            with pytest.raises(BadImages, match="must lie in"):
                PixelRange(given_images, network).check("raise")


def test_finite_images_are_told_from_others() -> None:
    images = torch.rand(4, 3, 5, 5)
    images[1, 0, 0, 0] = float("nan")
    images[3, 2, 1, 1] = float("inf")
    finite = PixelRange(images, NETWORK).check("skip")
    assert finite is not None
    assert finite.tolist() == [True, False, True, False]


def test_the_range_of_finite_images_counts_even_beside_others() -> None:
    images = torch.rand(4, 3, 5, 5)
    images[1], images[2, 0, 0, 0] = float("nan"), 7.0
    with pytest.raises(BadImages, match="found .* to 7"):
        PixelRange(images, NETWORK).check("skip")


def test_channels_must_agree_with_normalized() -> None:
    with pytest.raises(BadImages, match="normalized= names 3 channels, the images have 1"):
        check_form(torch.rand(2, 1, 8, 8), NORMALIZED)


def test_a_network_without_tensors_takes_cpu_floats() -> None:
    network = Network(nn.Identity())
    check_form(torch.rand(2, 3, 8, 8), network)
    assert (network.device.type, network.dtype) == ("cpu", torch.float32)


IMAGES = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
jit: Any = torch.jit


class OnADevice(torch.Tensor):
    """Images that say they are on a CUDA device, and stay on the host."""

    is_cuda = True


def calls_of(adapter: Any, images: Tensor) -> list[str]:
    """What an adapter does to answer images, and that it predicts only once."""
    done: list[str] = []

    def predict(images: Tensor) -> Tensor:
        done.append("predict")
        return torch.zeros(len(images), 5)

    def learn(images: Tensor, predicted: Tensor | None = None) -> Tensor:
        done.append("step" if predicted is None else "learn")
        return torch.zeros(len(images), 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "_predict", predict)
        patch.setattr(adapter, "learn", learn)
        adapter(images)
    return done


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Images that pass for a device's."""
    stream = SimpleNamespace(record_event=lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: stream)
    return IMAGES.as_subclass(OnADevice)


def test_on_the_host_images_are_looked_at_first(model: nn.Module) -> None:
    adapter = adapt(model)
    assert calls_of(adapter, IMAGES) == ["step"]
    with adapter.paused():
        assert calls_of(adapter, IMAGES) == ["predict"]


def test_on_a_device_the_prediction_comes_first(model: nn.Module, on_a_device: Tensor) -> None:
    adapter = adapt(model)
    assert calls_of(adapter, on_a_device) == ["predict", "learn"]
    with adapter.paused():
        assert calls_of(adapter, on_a_device) == ["predict"]


@pytest.mark.parametrize("method", ["tent", "bn", "cotta"])
def test_a_method_whose_prediction_is_its_step_is_left_to_do_both(
    model: nn.Module, on_a_device: Tensor, method: str
) -> None:
    assert calls_of(adapt(model, method), on_a_device) == ["step"]


def test_watchers_come_before_everything(model: nn.Module, on_a_device: Tensor) -> None:
    adapter = adapt(model)
    adapter.add_callback(Callback())
    assert calls_of(adapter, on_a_device) == ["step"]


def test_images_with_nan_are_predicted_apart(model: nn.Module, on_a_device: Tensor) -> None:
    on_a_device = on_a_device.clone()
    on_a_device[0] = torch.nan
    assert calls_of(adapt(model, non_finite="skip"), on_a_device)[1:] == ["predict", "step"]


@pytest.mark.parametrize(("scale", "message"), [(255, "divide by 255"), (1, "no")])
def test_the_better_reason_is_told(scale: float, message: str) -> None:
    def refuse(images: Tensor) -> Tensor:
        raise BadImages("no")

    images = IMAGES * scale
    with pytest.raises(BadImages, match=message):
        predict_early(images, PixelRange(images, Network(nn.Linear(1, 1))), refuse)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "record",
    [
        lambda adapter: jit.trace(adapter, IMAGES),
        jit.script,
        pytest.param(
            lambda adapter: torch.export.export(adapter, (IMAGES,)),
            marks=pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch cannot tell"),
        ),
        lambda adapter: torch.onnx.export(adapter, (IMAGES,), os.devnull, dynamo=False),
    ],
)
@pytest.mark.parametrize("background", [False, True])
def test_an_adapter_is_not_recorded(model: nn.Module, record: Callable[[Any], Any], background: bool) -> None:
    adapter = adapt(model, background=background)
    with pytest.raises(NotExportable, match=r"an adapter learns while it predicts.*use adapter.export\(\)"):
        record(adapter)
    assert adapter.stats.samples == 0
    assert jit.trace(adapter.export(), IMAGES)(IMAGES).shape == (8, 5)


def test_a_learner_without_a_step_of_its_own_predicts_and_learns_from_it() -> None:
    class Learning(Learner):
        learns_from_predictions = True

        def predict(self, images: Tensor) -> Tensor:
            return images.mean((2, 3))

        def learn_from(self, images: Tensor, logits: Tensor) -> None:
            self.seen = images, logits

    learner = Learning()
    assert learner.step(IMAGES) is learner.seen[1]
    assert learner.seen[0] is IMAGES


BYTES = torch.randint(0, 256, (4, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
BATCH = BYTES.float() / 255
LAST = BYTES.permute(0, 2, 3, 1).contiguous()
SPARSE = BATCH.where(BATCH > 0.5, 0.0)


def pictures() -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    return [image.fromarray(array) for array in LAST.numpy()]


def refusal(model: nn.Module, images: Any) -> str:
    adapter = resitta.adapt(model)
    with pytest.raises(BadImages) as caught:
        adapter(images)
    assert adapter.samples == 0
    assert "\n" not in str(caught.value)
    return str(caught.value)


CASES: dict[str, tuple[Any, str, Tensor]] = {
    "uint8": (BYTES, "found torch.uint8", BATCH),
    "uint8, channels last": (LAST, "found torch.uint8", BATCH),
    "one uint8 image, channels last": (LAST[0], r"four axes N×C×H×W, found shape \(10, 10, 3\)", BATCH[:1]),
    "one image": (BATCH[0], r"four axes N×C×H×W, found shape \(3, 10, 10\)", BATCH[:1]),
    "floats, channels last": (LAST.float() / 255, r"the model refused .* they look like N×H×W×C", BATCH),
    "floats to 255, channels last": (LAST.float(), "divide by 255; they look like N×H×W×C", BATCH),
    "array": (LAST.numpy(), r"found an ndarray of uint8 with shape \(4, 10, 10, 3\)", BATCH),
    "one array": (LAST[0].numpy(), r"found an ndarray of uint8 with shape \(10, 10, 3\)", BATCH[:1]),
    "array of floats": (BATCH.numpy(), "found an ndarray of float32", BATCH),
    "list of arrays": (list(LAST.numpy()), "found a list of 4 ndarrays", BATCH),
    "list of tensors": (list(BATCH), "found a list of 4 Tensors", BATCH),
    "list of uint8 tensors": (list(LAST), "found a list of 4 Tensors", BATCH),
    "dict": ({"label": BATCH[:, 0, 0, 0], "image": BATCH}, "found a dict with the keys 'label', 'image'", BATCH),
    "pair": ((BATCH, torch.zeros(4)), "found a tuple that begins with a batch of images", BATCH),
    "sparse": (SPARSE.to_sparse(), "found a tensor of layout torch.sparse_coo", SPARSE),
    "mkldnn": (BATCH.to_mkldnn(), "found a tensor of layout torch._mkldnn", BATCH),
    "float8": (SPARSE.to(torch.float8_e5m2), "found torch.float8_e5m2", SPARSE.to(torch.float8_e5m2).float()),
}


@pytest.mark.filterwarnings("ignore:.*(sparse|[Nn]ested|[Qq]uant|TypedStorage).*")
@pytest.mark.parametrize("case", CASES)
def test_a_refusal_names_the_expression_that_helps(model: nn.Module, case: str) -> None:
    images, found, expected = CASES[case]
    said = refusal(model, images)
    assert re.search(found, said), said
    carried_out(said, images, expected)


def carried_out(said: str, images: Any, expected: Tensor) -> None:
    """Evaluate what a refusal says, and see that it gives the batch that was meant."""
    advice = re.findall(r"(?:pass|by 255:|axis with|convert with) (.*?)(?: \(OpenCV.*|; .*)?$", said)[-1]
    given = eval(advice, {"images": images, "batch": images, "torch": torch, "numpy": numpy})
    torch.testing.assert_close(given, expected, rtol=0, atol=0)


@pytest.mark.parametrize("single", [True, False])
def test_pictures_are_stacked(model: nn.Module, single: bool) -> None:
    images = pictures()
    said = refusal(model, images[0] if single else images)
    assert ("found a PIL image;" if single else "found a list of 4 PIL images;") in said
    carried_out(said, images[0] if single else images, BATCH[:1] if single else BATCH)


@pytest.mark.parametrize(("images", "flipped"), [(LAST, "images.flip(-1)"), (LAST.numpy(), "images[..., ::-1].copy()")])
def test_the_order_of_colours_is_named_where_opencv_may_be_behind_it(
    model: nn.Module, images: Any, flipped: str
) -> None:
    assert f"(OpenCV reads BGR: {flipped} first)" in refusal(model, images)
    swapped = eval(flipped, {"images": images})
    torch.testing.assert_close(torch.as_tensor(swapped), LAST.flip(-1))


@pytest.mark.filterwarnings("ignore:.*(prototype|deprecated).*")
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (lambda: torch.nested.nested_tensor(list(BATCH)), "found a nested tensor; pass images of one size together"),
        (lambda: torch.nested.nested_tensor(list(BATCH), layout=torch.jagged), "found a nested tensor"),
        (lambda: torch.quantize_per_tensor(BATCH, 0.1, 0, torch.quint8), r"found torch.quint8; pass images.dequantize"),
        (lambda: BATCH.to(torch.complex64), r"found torch.complex64; take the magnitude, images.abs\(\)"),
        (lambda: BATCH.to(torch.int32), r"found torch.int32; convert with images.float\(\), and divide by the highest"),
        (lambda: BATCH > 0.5, "found torch.bool"),
        (lambda: torch.rand(8, 1, 16000), r"shape \(8, 1, 16000\); N×1×L looks like audio.* turn it into spectrograms"),
        (lambda: torch.rand(8, 100), r"found shape \(8, 100\); reshape them"),
        (lambda: {"label": 3}, "found a dict with the keys 'label'; pass the tensor of the images alone"),
        (lambda: [], "found list; try torch.as_tensor"),
        (lambda: "cat.jpg", "found str; try torch.as_tensor"),
        (lambda: None, "found NoneType"),
        (lambda: np.zeros(3), r"found an ndarray of float64 with shape \(3,\)"),
    ],
)
def test_other_kinds_are_named(model: nn.Module, images: Any, message: str) -> None:
    assert re.search(message, refusal(model, images()))


def test_images_of_three_rows_are_not_taken_for_channels_last() -> None:
    thin = nn.Sequential(nn.Conv2d(3, 4, (3, 1)), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert resitta.adapt(thin)(torch.rand(2, 3, 10, 3)).shape == (2, 4)
    spectral = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert resitta.adapt(spectral)(torch.rand(2, 8, 3, 3)).shape == (2, 4)
