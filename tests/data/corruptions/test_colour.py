import colorsys

import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.colour import brightness, contrast, saturate
from resitta.data.corruptions.random import Draws

NO_DRAWS = Draws(torch.tensor([0]))


def colours() -> Tensor:
    """Random colours and the awkward ones: black, white, greys and pure colours."""
    random = torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(0)).float()
    awkward = torch.tensor([[0, 0, 0], [255, 255, 255], [100, 100, 100], [255, 0, 0], [0, 0, 1]]).float().T
    return torch.cat([random, awkward], 1).view(1, 3, 5, 9)


def in_hsv(x: Tensor, *, s: tuple[float, float] = (1, 0), v: float = 0) -> Tensor:
    """Change saturation and value of every pixel on its own, in HSV."""
    changed = []
    for pixel in (x / 255).view(3, -1).T.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        saturation = min(saturation * s[0] + s[1], 1)
        changed.append(colorsys.hsv_to_rgb(hue, saturation, min(value + v, 1)))
    return (torch.tensor(changed) * 255).T.reshape(x.shape)


@pytest.mark.parametrize("amount", [0.05, 0.5])
def test_brightness_adds_to_the_value_of_hsv(amount: float) -> None:
    x = colours()
    torch.testing.assert_close(brightness(x, NO_DRAWS, amount=amount), in_hsv(x, v=amount), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("factor", "amount"), [(0.3, 0), (2, 0.1), (20, 0.2)])
def test_saturate_scales_the_saturation_of_hsv(factor: float, amount: float) -> None:
    x = colours()
    found = saturate(x, NO_DRAWS, factor=factor, amount=amount)
    torch.testing.assert_close(found, in_hsv(x, s=(factor, amount)), rtol=1e-4, atol=1e-2)


def test_contrast_shrinks_towards_the_mean_of_each_channel() -> None:
    x = colours()
    shrunk = contrast(x, NO_DRAWS, share=0.4)
    torch.testing.assert_close(shrunk.mean((2, 3)), x.mean((2, 3)))
    torch.testing.assert_close(shrunk.std((2, 3)), 0.4 * x.std((2, 3)))
