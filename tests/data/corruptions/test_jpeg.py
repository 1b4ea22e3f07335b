import io

import numpy as np
import pytest
import torch
from torch import Tensor

from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.jpeg import _steps, jpeg_compression
from resitta.data.corruptions.random import Draws

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
