"""One pass with a row per sample equals a pass for each stream."""

from typing import Any

import pytest
import torch
from tests.conftest import small_network
from torch import Tensor, nn

import resitta
from resitta.fleets.one_pass import MixedSamples, OnePass, fits_one_pass, scaled_and_shifted
from resitta.norm.bn_layers import bn_layers
from resitta.norm.resibn import ResiBN
from resitta.training.network import Network


class ActivatedBN(nn.BatchNorm2d):
    """A layer that does more than normalise, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = nn.functional.silu(super().forward(x))
        return activated


class Residual(nn.Module):
    """Uses the input of a normalisation a second time, and one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.conv(self.bn(x).relu_())
        again: Tensor = self.bn(y)
        return y + again


def convolutional() -> nn.Module:
    first = nn.Conv2d(3, 8, 3), ActivatedBN(8, eps=1e-3)
    rest = Residual(), nn.BatchNorm2d(8, affine=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*first, *rest, nn.Linear(8, 6), nn.BatchNorm1d(6))


def of_sequences() -> nn.Module:
    return nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Flatten(), nn.LazyLinear(6))


def forks(source: Network, count: int, **options: Any) -> list[Network]:
    """Networks whose normalisation differs."""
    found = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        fork = source.fork("affine", **options).with_bn(lambda layer: ResiBN(layer, 0.05)).requires_grad_(False)
        for _, layer in bn_layers(fork.model):
            held = layer.weight, layer.bias, layer.running_mean, layer.running_var
            for tensor, low in zip(held, (0.5, -0.5, -0.5, 0.3), strict=True):
                if tensor is not None:
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + low)
        found.append(fork)
    return found


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("make", [convolutional, of_sequences, small_network])
def test_it_equals_a_pass_for_each_stream(make: Any, channels_last: bool) -> None:
    images = torch.rand(12, 3, 9, 9)
    model = make()
    model(images)
    source = Network(model.eval())
    streams = forks(source, 3, channels_last=channels_last)
    one_pass = OnePass(source, streams[0])
    places = [5, 0, 17]
    for place, fork in zip(places, streams, strict=True):
        one_pass.put(place, fork)
    owners = torch.randint(3, (12,)).tolist()
    separate = torch.cat([streams[owner].predict(image[None]) for owner, image in zip(owners, images, strict=True)])
    assert separate.std() > 0.01
    together = one_pass.predict(images, [places[owner] for owner in owners])
    torch.testing.assert_close(together, separate, rtol=1e-5, atol=1e-5)
    one_pass.put(0, streams[0])
    again = one_pass.predict(images[:3], [places[0], 0, places[2]])
    torch.testing.assert_close(again[1:2], streams[0].predict(images[1:2]), rtol=1e-5, atol=1e-5)


def test_images_in_half_precision_and_bf16_are_rounded_once() -> None:
    for options, kind in (({"precision": "bf16"}, torch.float32), ({}, torch.bfloat16)):
        source = Network(small_network().to(kind), **options)  # type: ignore[arg-type]
        streams, images = forks(source, 2), torch.rand(2, 3, 10, 10).to(kind)
        one_pass = OnePass(source, streams[0])
        for place, fork in enumerate(streams):
            one_pass.put(place, fork)
        separate = torch.cat([fork.predict(images[place : place + 1]) for place, fork in enumerate(streams)])
        torch.testing.assert_close(one_pass.predict(images, [0, 1]), separate, rtol=3e-2, atol=3e-2)


def test_a_layer_that_gets_other_than_one_entry_per_image_is_noticed() -> None:
    source = Network(small_network())
    one_pass = OnePass(source, source.fork())
    one_pass.put(0, source.fork())
    one_pass.network.model.register_forward_pre_hook(lambda module, inputs: (inputs[0].repeat(2, 1, 1, 1),))
    with pytest.raises(MixedSamples):
        one_pass.predict(torch.rand(2, 3, 10, 10), [0, 0])
    assert one_pass.rows.now is None


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (4, 3, 2, 5, 2), (4, 3, 1, 1)])
def test_scaling_is_the_same_in_every_layout(shape: tuple[int, ...]) -> None:
    x, scale, shift = torch.rand(shape), torch.rand(4, 3), torch.rand(4, 3)
    expected = x * scale.view(4, 3, *[1] * (len(shape) - 2)) + shift.view(4, 3, *[1] * (len(shape) - 2))
    torch.testing.assert_close(scaled_and_shifted(x, scale, shift), expected)
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    if len(shape) in layouts:
        x = x.contiguous(memory_format=layouts[len(shape)])
        torch.testing.assert_close(scaled_and_shifted(x, scale, shift), expected)


@pytest.mark.parametrize(
    ("method", "settings", "fits"),
    [
        ("resitta", {}, True),
        ("rotta", {}, True),
        ("tribe", {}, True),
        ("tide", {}, True),
        ("resitta", {"norm": "adbn"}, False),
        ("resitta", {"train": "all"}, False),
        ("tent", {}, False),
        ("petta", {}, False),
        ("note", {}, False),
        ("source", {}, False),
    ],
)
def test_which_methods_fit(method: str, settings: dict[str, Any], fits: bool) -> None:
    settings = {"source": torch.rand(20, 3, 10, 10)} | settings if method == "petta" else settings
    assert fits_one_pass(resitta.adapt(small_network(), method, **settings).learner) is fits


def test_hooks_of_a_layer_are_not_skipped() -> None:
    model = small_network()
    layer = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    layer.register_forward_hook(lambda module, inputs, output: output)
    assert not fits_one_pass(resitta.adapt(model, "resitta").learner)
