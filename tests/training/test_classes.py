from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import adapt
from resitta.errors import BadOutput, BadSetting
from resitta.method import Learner, Method
from resitta.methods.source import SourceLearner
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.training.network import Network

SQUEEZED = nn.AdaptiveAvgPool2d(1), nn.Flatten()


def flat(channels: int, side: int, classes: int = 7) -> nn.Module:
    """A model that takes images of one size only."""
    return nn.Sequential(nn.BatchNorm2d(channels), nn.Flatten(), nn.Linear(channels * side**2, classes))


class Odd(nn.Module):
    """Its last layer to be made is not its head, it counts its calls, and it draws random numbers."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 7)
        self.norm = nn.BatchNorm2d(3)
        self.projection = nn.Linear(3, 128)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        features = self.norm(x).mean((2, 3)) + 0 * torch.rand(())
        return {"embedding": self.projection(features), "logits": self.head(features)}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "any size": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *SQUEEZED, nn.Linear(4, 7)),
    "convolution as head": lambda: nn.Sequential(nn.BatchNorm2d(3), *SQUEEZED[:1], nn.Conv2d(3, 7, 1), nn.Flatten()),
    "something after the head": lambda: nn.Sequential(*SQUEEZED, nn.Linear(3, 9), nn.Linear(9, 7), nn.BatchNorm1d(7)),
    "one channel": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), *SQUEEZED, nn.Linear(4, 7)),
    "five channels": lambda: nn.Sequential(nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4), *SQUEEZED, nn.Linear(4, 7)),
    "grey 28×28 only": lambda: flat(1, 28),
    "224×224 only": lambda: flat(3, 224),
    "no parameters": lambda: nn.Sequential(nn.AdaptiveAvgPool2d((1, 7)), nn.Flatten(1, 2), nn.Flatten(0, 0), Rows()),
}


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_is_asked(kind: str) -> None:
    network = Network(MODELS[kind]())
    assert network.classes == 7
    assert network.fork().classes == 7
    assert Network(MODELS[kind]().double()).classes == 7


def test_asking_leaves_no_trace() -> None:
    model = Odd().eval()
    network, random = Network(model, output="logits"), torch.get_rng_state()
    assert network.classes == 7
    assert torch.equal(torch.get_rng_state(), random)
    assert model.calls == network.model.calls == 0


def test_a_wrapped_network_can_be_asked_as_well() -> None:
    assert Network(Odd(), output="logits").fork("affine").with_bn(BatchStatisticsBN).classes == 7


def test_normalised_images_have_as_many_channels_as_means() -> None:
    four = nn.Sequential(nn.Flatten(), nn.Linear(4 * 64**2, 7), nn.BatchNorm1d(7))
    assert Network(four, normalized=([0.5] * 4, [0.2] * 4)).classes == 7


def test_a_model_that_does_not_tell_needs_the_number() -> None:
    model = flat(3, 50)
    with pytest.raises(BadSetting, match=r"none of the usual sizes; pass adapt\(\.\.\., classes=10\)"):
        _ = Network(model).classes
    assert Network(model, classes=7).classes == 7


def test_a_number_that_is_not_the_models_is_refused_at_the_first_image() -> None:
    adapter = adapt(flat(3, 8), "bn", classes=5)
    with pytest.raises(BadOutput, match=r"7 logits per image where 5 classes were expected; if 7 is right, pass"):
        adapter(torch.rand(4, 3, 8, 8))
    assert adapter.samples == 0


@pytest.mark.parametrize("classes", [1, 0, True, 2.0, "10"])
def test_the_number_must_be_one(classes: Any) -> None:
    with pytest.raises(BadSetting, match="classes must be a whole number from 2 on"):
        adapt(flat(3, 8), "bn", classes=classes)


def test_the_number_is_saved_with_an_adapter(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = flat(3, 8)
    adapt(model, "bn", classes=7).save(tmp_path / "state")
    assert resitta.load(model, tmp_path / "state").options.classes == 7


def test_a_method_knows_it_when_it_starts(model: nn.Module) -> None:
    found: list[int] = []

    @dataclass(frozen=True, kw_only=True)
    class Curious(Method):
        def start(self, network: Network, generator: torch.Generator) -> Learner:
            found.append(network.classes)
            return SourceLearner(network)

    adapter = adapt(model, Curious())
    adapter.reset()
    assert found == [5, 5]
    assert adapter(torch.rand(2, 3, 10, 10)).shape == (2, 5)
