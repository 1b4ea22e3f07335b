"""In which order a batch is predicted, looked at and learned from."""

import os
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.errors import BadImages, NotExportable
from resitta.inputs.checks import ROUNDING, PixelRange, check_form, predict_early
from resitta.method import Learner
from resitta.monitor.callbacks import Callback
from resitta.training.network import Network

NETWORK = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
NORMALIZED = Network(nn.Conv2d(3, 4, 3), normalized=((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))


@pytest.mark.filterwarnings("ignore:floats between 0 and 1")
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


@pytest.mark.parametrize("number", [1, 8])
def test_images_that_were_not_normalised_are_noticed(model: nn.Module, number: int) -> None:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    adapter = adapt(model, "resitta", normalized=(mean.tolist(), std.tolist()))
    with pytest.warns(UserWarning, match=r"floats between 0 and 1 came to an adapter with normalized=.* to=adapter"):
        adapter(resitta.images(IMAGES[:number]))
    with warnings.catch_warnings(action="error"):
        adapter((IMAGES[:number] - mean.view(3, 1, 1)) / std.view(3, 1, 1))
        adapter((IMAGES[:number] * 255).byte())
        adapt(model, "resitta")(IMAGES)


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
    adapter = adapt(model, "resitta")
    assert calls_of(adapter, IMAGES) == ["step"]
    with adapter.paused():
        assert calls_of(adapter, IMAGES) == ["predict"]


def test_on_a_device_the_prediction_comes_first(model: nn.Module, on_a_device: Tensor) -> None:
    adapter = adapt(model, "resitta")
    assert calls_of(adapter, on_a_device) == ["predict", "learn"]
    with adapter.paused():
        assert calls_of(adapter, on_a_device) == ["predict"]


@pytest.mark.parametrize("method", ["tent", "bn", "cotta"])
def test_a_method_whose_prediction_is_its_step_is_left_to_do_both(
    model: nn.Module, on_a_device: Tensor, method: str
) -> None:
    assert calls_of(adapt(model, method), on_a_device) == ["step"]


def test_watchers_come_before_everything(model: nn.Module, on_a_device: Tensor) -> None:
    adapter = adapt(model, "resitta")
    adapter.add_callback(Callback())
    assert calls_of(adapter, on_a_device) == ["step"]


def test_images_with_nan_are_predicted_apart(model: nn.Module, on_a_device: Tensor) -> None:
    on_a_device = on_a_device.clone()
    on_a_device[0] = torch.nan
    assert calls_of(adapt(model, "resitta", non_finite="skip"), on_a_device)[1:] == ["predict", "step"]


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
    adapter = adapt(model, "resitta", background=background)
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


def test_images_of_three_rows_are_not_taken_for_channels_last() -> None:
    thin = nn.Sequential(nn.Conv2d(3, 4, (3, 1)), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert resitta.adapt(thin, "resitta")(torch.rand(2, 3, 10, 3)).shape == (2, 4)
    spectral = nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert resitta.adapt(spectral, "resitta")(torch.rand(2, 8, 3, 3)).shape == (2, 4)
