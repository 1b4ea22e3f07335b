import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.blur import disc, glass_blur, motion_blur, scatter_pixels, zoom_blur
from resitta.data.corruptions.filters import zoom_in
from resitta.data.corruptions.random import Draws


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).float()


class Steps(Draws):
    """Hands out prepared steps, kept in the middle of the interval that each one is cut from."""

    def __init__(self, steps: Tensor) -> None:
        self.steps = steps

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        assert self.steps.shape[1:] == shape
        assert low <= self.steps.min()
        assert self.steps.max() < high
        return self.steps + 0.5


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_scatter_pixels_agrees_with_replacing_one_after_the_other(reach: int) -> None:
    n, height, width = 3, 15, 18
    x = images(n, 3, height, width)
    steps = torch.randint(-reach, reach, (n, 2, height, width), generator=torch.Generator().manual_seed(1))
    expected = x.numpy().copy()
    for image in range(n):
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                down, right = steps[image, :, h, w].tolist()
                expected[image, :, h, w] = expected[image, :, h + down, w + right]
    found = scatter_pixels(x, Steps(steps.float()), reach)
    assert np.array_equal(found.numpy(), expected)


def test_glass_blur_without_blur_only_moves_pixels_nearby() -> None:
    ramp = torch.arange(32.0).expand(1, 3, 32, 32) * 8
    moved = glass_blur(ramp, Draws(torch.tensor([1])), sigma=0.05, reach=1, rounds=1)
    assert 0 < (moved != ramp).float().mean() < 0.9
    assert torch.isin(moved, ramp).all()


@pytest.mark.parametrize(("radius", "edge"), [(0.3, 0.4), (1.5, 0.1), (8, 0.5), (10, 0.5)])
def test_disc_is_symmetric_and_keeps_the_light(radius: float, edge: float) -> None:
    kernel = disc(radius, edge)
    # The public discs of radius 8 and 10 touch the rim of their array, which mirrors 1 % of the light back in.
    assert kernel.sum().item() == pytest.approx(1, abs=0.015 if radius >= 8 else 1e-6)
    assert torch.allclose(kernel, kernel.T, atol=1e-7)
    assert torch.allclose(kernel, kernel.flip(0, 1), atol=1e-7)
    assert kernel.shape[0] == min(2 * (int(radius) + 1) + 1, 17 if radius <= 8 else 21)


def test_disc_without_soft_edge_is_flat() -> None:
    kernel = disc(3, 0.01)
    inside = kernel[kernel > 1e-6]
    assert len(inside) == 29  # pixels within 3 of the centre
    assert torch.allclose(inside, torch.full_like(inside, 1 / 29))


def test_motion_blur_turns_each_image_by_its_own_angle_and_rounds() -> None:
    x = images(1, 3, 32, 32).expand(2, -1, -1, -1)
    blurred = motion_blur(x, Draws(torch.tensor([1, 2])), radius=9, sigma=2.5)
    assert not torch.equal(blurred[0], blurred[1])
    assert torch.equal(blurred, blurred.round())


def test_zoom_blur_averages_the_image_with_its_enlargements() -> None:
    x = images(2, 3, 32, 32)
    factors = [1.0, 1.03, 1.06, 1.09]
    expected = torch.stack([x, *(zoom_in(x, factor) for factor in factors)]).mean(0)
    found = zoom_blur(x, Draws(torch.tensor([1, 2])), stop=1.1, step=0.03)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)
