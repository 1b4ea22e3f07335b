import colorsys
import importlib
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.training import colour
from resitta.training.colour import JITTER, Factor, jitter

Adjust = Callable[[Tensor, Factor], Tensor]
ADJUSTMENTS = [pytest.param(adjust, low, high, id=adjust.__name__) for adjust, low, high in JITTER]


@pytest.fixture(scope="module")
def torchvision() -> ModuleType:
    try:
        return importlib.import_module("torchvision.transforms.functional")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")


def colours() -> Tensor:
    """Four images of random colours, among them black, white, grey, pure and two-channel ties."""
    images = torch.rand(4, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    special = torch.tensor(
        [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0.3, 0.3]]
    )
    images[0, :, 0], images[1, :, 1, :3] = special[:5].T, special[5:].T
    return images


def pixel_reference(name: str, pixel: list[float], factor: float, mean: float) -> list[float]:
    grey = 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]
    if name == "adjust_hue":
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        return list(colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value))
    if name == "adjust_gamma":
        return [max(value, 1e-8) ** factor for value in pixel]
    base = {"adjust_brightness": 0.0, "adjust_contrast": mean, "adjust_saturation": grey}[name]
    return [min(max(base + factor * (value - base), 0), 1) for value in pixel]


def reference(name: str, image: Tensor, factor: float) -> Tensor:
    pixels = image.double().permute(1, 2, 0).numpy()
    mean = float((pixels @ np.array([0.2989, 0.587, 0.114])).mean())
    rows = [[pixel_reference(name, pixel.tolist(), factor, mean) for pixel in row] for row in pixels]
    return torch.tensor(rows).permute(2, 0, 1).float()


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_against_pixel_by_pixel_arithmetic(adjust: Adjust, low: float, high: float, share: float) -> None:
    images, factor = colours(), low + share * (high - low)
    expected = torch.stack([reference(adjust.__name__, image, factor) for image in images])
    torch.testing.assert_close(adjust(images, factor), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("factor", [-0.5, -0.2, 0.0, 0.35, 0.5])
def test_hue_turns_all_the_way_round(factor: float) -> None:
    images = colours()
    expected = torch.stack([reference("adjust_hue", image, factor) for image in images])
    torch.testing.assert_close(colour.adjust_hue(images, factor), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_a_factor_per_image_is_that_image_alone(adjust: Adjust, low: float, high: float) -> None:
    images, factors = colours(), torch.linspace(low, high, 4)
    alone = [adjust(image[None], factor.item()) for image, factor in zip(images, factors, strict=True)]
    torch.testing.assert_close(adjust(images, factors), torch.cat(alone))


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_the_input_is_left_alone(adjust: Adjust, low: float, high: float) -> None:
    images = colours()
    adjust(images, low)
    assert torch.equal(images, colours())


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_single_channel_has_no_saturation_and_no_hue(adjust: Adjust, low: float, high: float) -> None:
    images = colours()[:, :1]
    three = adjust(images.expand(-1, 3, -1, -1), high)[:, :1]
    torch.testing.assert_close(adjust(images, high), three, atol=1e-4, rtol=0)


def test_contrast_of_other_channel_counts_turns_about_the_mean_of_all_values() -> None:
    images = torch.rand(2, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = images.mean((1, 2, 3), keepdim=True) * 0.5 + images * 0.5
    torch.testing.assert_close(colour.adjust_contrast(images, 0.5), expected)


def test_jitter_applies_the_adjustments_in_the_given_order() -> None:
    images, factors = colours(), torch.tensor([[0.7, 1.2, 1.4, 0.05, 0.8]])
    step_by_step = images
    for index in (4, 2, 0, 3, 1):
        step_by_step = JITTER[index][0](step_by_step, factors[0, index].item())
    out = jitter(images, factors, torch.tensor([[4, 2, 0, 3, 1]]))
    torch.testing.assert_close(out, step_by_step)
    assert not torch.allclose(out, jitter(images, factors, torch.arange(5).view(1, 5)), atol=1e-2)


def test_jitter_gives_every_image_its_own_factors_and_order() -> None:
    generator = torch.Generator().manual_seed(0)
    images, factors = colours(), 0.8 + 0.1 * torch.rand(4, 5, generator=generator)
    order = torch.stack([torch.randperm(5, generator=generator) for _ in images])
    alone = [jitter(images[i : i + 1], factors[i : i + 1], order[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(jitter(images, factors, order), torch.cat(alone))


@pytest.mark.parametrize(("adjust", "low", "high"), ADJUSTMENTS)
def test_against_torchvision(torchvision: ModuleType, adjust: Adjust, low: float, high: float) -> None:
    images = colours().clamp(1e-8, 1)
    for factor in (low, (low + 2 * high) / 3, high):
        expected = getattr(torchvision, adjust.__name__)(images, factor)
        torch.testing.assert_close(adjust(images, factor), expected, atol=1e-5, rtol=0)
