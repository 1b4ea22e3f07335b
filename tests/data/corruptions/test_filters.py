import math

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.filters import Border, convolve, enlarge, smear, smooth, zoom_in

ndimage = pytest.importorskip("scipy.ndimage")


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) * 255


@pytest.mark.parametrize("border", ["nearest", "reflect"])
@pytest.mark.parametrize(("sigma", "truncate"), [(0.05, 4.0), (0.7, 4.0), (2.44, 3.0), (30.0, 3.0)])
def test_smooth_agrees_with_scipy(sigma: float, truncate: float, border: Border) -> None:
    x = images(2, 3, 17, 24)
    expected = ndimage.gaussian_filter(x.double().numpy(), (0, 0, sigma, sigma), mode=border, truncate=truncate)
    torch.testing.assert_close(
        smooth(x, sigma, truncate=truncate, border=border).double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-3
    )


def test_smooth_with_no_width_changes_nothing() -> None:
    x = images(1, 1, 9, 9)
    assert torch.equal(smooth(x, 0.0), x)


def test_convolve_agrees_with_scipy() -> None:
    x = images(2, 3, 17, 24)
    half = images(5, 5)
    kernel = half + half.flip(0, 1)
    kernel /= kernel.sum()
    expected = ndimage.correlate(x.numpy(), kernel[None, None].numpy(), mode="mirror")
    torch.testing.assert_close(convolve(x, kernel), torch.from_numpy(expected), rtol=1e-5, atol=1e-3)


def smear_by_loops(x: Tensor, radius: int, sigma: float, angle: float) -> Tensor:
    height, width = x.shape[-2:]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    result = torch.zeros_like(x)
    for i, weight in enumerate(weights):
        down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        rows = (torch.arange(height) + down).clamp(0, height - 1)
        columns = (torch.arange(width) + right).clamp(0, width - 1)
        result += weight / sum(weights) * x[..., rows[:, None], columns]
    return result


def test_smear_agrees_with_one_image_at_a_time() -> None:
    x = images(5, 3, 12, 20)
    angles = torch.tensor([-135.0, -44.0, 0.3, 17.0, 44.9])
    expected = torch.stack([smear_by_loops(i, 6, 2.5, a) for i, a in zip(x, angles.tolist(), strict=True)])
    torch.testing.assert_close(smear(x, 6, 2.5, angles), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.06, 1.25, 1.75, 2.5, 4.0])
def test_zoom_in_agrees_with_scipy(factor: float) -> None:
    x = images(1, 1, 32, 32)
    kept = math.ceil(32 / factor)
    top = (32 - kept) // 2
    crop = x[0, 0, top : top + kept, top : top + kept].numpy()
    large = ndimage.zoom(crop, factor, order=1, mode="nearest")
    trim = (len(large) - 32) // 2
    expected = torch.from_numpy(np.ascontiguousarray(large[trim : trim + 32, trim : trim + 32]))
    torch.testing.assert_close(zoom_in(x, factor)[0, 0], expected, rtol=1e-4, atol=1e-2)


def test_enlarge_keeps_the_centre_of_images_that_are_not_square() -> None:
    x = images(2, 1, 8, 12)
    assert enlarge(x, 2.5, 19, 29).shape == (2, 1, 19, 29)
    assert zoom_in(x, 1.3).shape == x.shape
