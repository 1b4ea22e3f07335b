"""In which order a batch is predicted, looked at and learned from."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt
from resitta.answering import _predict_meanwhile, answer
from resitta.errors import BadImages, NotExportable
from resitta.inputs import Values
from resitta.method import Learner
from resitta.monitor.callbacks import Callback
from resitta.training.network import Network

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

    answer(adapter, images, predict, learn)
    return done


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Images that pass for a device's."""
    monkeypatch.setattr("resitta.inputs.mark", lambda tensor: None)
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
        _predict_meanwhile(images, Values(images, Network(nn.Linear(1, 1))), refuse)


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


def test_a_learner_without_a_step_of_its_own_predicts_and_absorbs() -> None:
    class Absorbing(Learner):
        def predict(self, images: Tensor) -> Tensor:
            return images.mean((2, 3))

        def learn_from(self, images: Tensor, logits: Tensor) -> None:
            self.seen = images, logits

    learner = Absorbing()
    assert learner.predicts_first
    assert learner.step(IMAGES) is learner.seen[1]
    assert learner.seen[0] is IMAGES
