import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.digital import elastic_transform, pixelate
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
