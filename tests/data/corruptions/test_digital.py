import colorsys
import io

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.digital import (
    _steps,
    brightness,
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    saturate,
)
from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.random import Draws

NO_DRAWS = Draws(torch.tensor([0]))


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).float()


@pytest.mark.parametrize("share", [0.95, 0.9, 0.85, 0.75, 0.65, 0.6, 0.5, 0.4, 0.3, 0.25])
@pytest.mark.parametrize("side", [32, 64, 224])
def test_pixelate_agrees_with_pillow(side: int, share: float) -> None:
    pillow = pytest.importorskip("PIL.Image")
    x = images(1, 3, side, side)
    picture = pillow.fromarray(x[0].permute(1, 2, 0).byte().numpy())
    small = picture.resize((int(side * share), int(side * share)), pillow.Resampling.BOX)
    expected = np.array(small.resize((side, side), pillow.Resampling.BOX))
    found = pixelate(x, NO_DRAWS, share=share)[0].permute(1, 2, 0).numpy()
    assert np.abs(found - expected).mean() < 0.01


class Shifts(Draws):
    """Moves all three corners by the same vector, and no pixel on its own."""

    def __init__(self, right: float, down: float) -> None:
        self.vector = torch.tensor([right, down])

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return self.vector.expand(1, 3, 2) if shape == (3, 2) else torch.zeros(1, *shape)


def test_elastic_transform_moves_the_image_where_the_corners_go_and_mirrors_the_rest() -> None:
    x = images(1, 3, 12, 12)
    moved = elastic_transform(x, Shifts(2, 3), strength=1.0, sigma=1.0, shift=5.0)
    torch.testing.assert_close(moved[..., 3:, 2:], x[..., :9, :10], rtol=0, atol=0.05)
    torch.testing.assert_close(moved[..., 3:, :2], x[..., :9, [2, 1]], rtol=0, atol=0.05)
    torch.testing.assert_close(moved[..., :3, 2:], x[..., [3, 2, 1], :10], rtol=0, atol=0.05)


def test_elastic_displacement_agrees_with_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    x = images(1, 1, 16, 20)
    noise = Draws(torch.tensor([3]))
    noise.uniform(3, 2)
    field = noise.uniform(2, 16, 20, low=-1, high=1)[0].numpy()
    right, down = (ndimage.gaussian_filter(f, 1.28, mode="reflect", truncate=3) * 8 for f in field)
    rows, columns = np.mgrid[:16, :20]
    expected = ndimage.map_coordinates(x[0, 0].numpy(), [rows + down, columns + right], order=1, mode="reflect")
    found = elastic_transform(x, Draws(torch.tensor([3])), strength=8, sigma=1.28, shift=0)
    torch.testing.assert_close(found[0, 0], torch.from_numpy(expected), rtol=0, atol=0.05)


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


pillow = pytest.importorskip("PIL.Image")


def photograph(height: int, width: int) -> Tensor:
    """Coloured shapes of all sizes: smoothed noise on several scales."""
    noise = Draws(torch.tensor([1]))
    layers = [smooth(noise.normal(3, height, width), sigma) * (20 + 60 * sigma) for sigma in (0.0, 1.0, 4.0)]
    return (sum(layers, start=torch.zeros(1)) + 128).clamp(0, 255).round()


@pytest.mark.parametrize("quality", [7, 10, 25, 40, 58, 80])
@pytest.mark.parametrize("size", [(32, 32), (224, 224), (45, 67)])
def test_agrees_with_pillow(size: tuple[int, int], quality: int) -> None:
    x = photograph(*size)
    file = io.BytesIO()
    pillow.fromarray(x[0].permute(1, 2, 0).byte().numpy()).save(file, "JPEG", quality=quality)
    expected = np.array(pillow.open(file)).astype(float)
    found = jpeg_compression(x, Draws(torch.tensor([0])), quality=quality)[0].permute(1, 2, 0).numpy()
    lost = np.abs(expected - x[0].permute(1, 2, 0).numpy()).mean()
    assert np.abs(found - expected).mean() < 0.03 * lost


def test_the_table_at_quality_50_is_the_standard_one_and_smaller_above() -> None:
    table = "16 11 10 255"
    assert _steps(table, 50).tolist() == [16, 11, 10, 255]
    assert _steps(table, 75).tolist() == [8, 6, 5, 128]
    assert _steps(table, 100).tolist() == [1, 1, 1, 1]
    assert _steps(table, 10).tolist() == [80, 55, 50, 255]


def test_flat_images_stay_flat() -> None:
    x = torch.full((1, 3, 24, 40), 77.0)
    compressed = jpeg_compression(x, Draws(torch.tensor([0])), quality=25)
    assert (compressed == compressed[..., :1, :1]).all()
    assert (compressed - 77).abs().max() <= 4
