import pytest
import torch
from torch import Tensor

from resitta.data.corruptions import weather
from resitta.data.corruptions.random import Draws
from resitta.data.corruptions.tables import setting


def scene(n: int = 4, side: int = 32) -> Tensor:
    return torch.randint(0, 200, (n, 3, side, side), generator=torch.Generator().manual_seed(0)).float()


def draws(n: int = 4) -> Draws:
    return Draws(torch.arange(n) * 31)


def test_snow_whitens_the_scene_and_adds_flakes_that_look_the_same_upside_down() -> None:
    x = scene()
    grey = (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2])[:, None]
    whitened = 0.8 * x + 0.2 * torch.maximum(x, 1.5 * grey + 127.5)
    flakes = weather.snow(x, draws(), **setting("snow", 5, side=32)) - whitened
    torch.testing.assert_close(flakes[:, 0], flakes[:, 1], rtol=0, atol=1e-2)
    torch.testing.assert_close(flakes, flakes.flip(2, 3), rtol=0, atol=1e-2)
    torch.testing.assert_close(flakes, flakes.round(), rtol=0, atol=1e-2)
    assert flakes.min() > -1e-2
    assert flakes.max() > 50


def test_no_flakes_below_the_threshold() -> None:
    x = scene()
    numbers = setting("snow", 1, side=32) | {"threshold": 9.0, "share": 1.0}
    torch.testing.assert_close(weather.snow(x, draws(), **numbers), x)


def test_fog_keeps_the_brightest_value_and_takes_contrast_away() -> None:
    x = scene()
    foggy = weather.fog(x, draws(), thickness=1.5, decay=1.75)
    assert (foggy.amax((1, 2, 3)) <= x.amax((1, 2, 3)) + 1e-2).all()
    brightest = x.amax((1, 2, 3), keepdim=True) / 255
    cloud = (foggy * (brightest + 1.5) / brightest - x) / (255 * 1.5)
    torch.testing.assert_close(cloud[:, 0], cloud[:, 2], rtol=0, atol=1e-4)
    assert cloud.min() == pytest.approx(0, abs=1e-4)
    assert cloud.max() == pytest.approx(1, abs=1e-4)


def test_frost_lays_a_random_crop_of_a_texture_over_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    # Textures whose pixels tell where they come from: texture number, row, column.
    sizes = torch.tensor([[40, 50], [60, 45]])
    rows, columns = torch.meshgrid(torch.arange(60), torch.arange(50), indexing="ij")
    pictures = torch.stack([torch.stack([torch.full_like(rows, i), rows, columns]) for i in range(2)])
    monkeypatch.setattr(weather, "textures", lambda *_: (pictures, sizes))
    n = 60
    frosty = weather.frost(torch.zeros(n, 3, 32, 32), draws(n), share=0.5, ice=1.0, scale=1.0)
    which, top, left = frosty[:, :, 0, 0].long().unbind(1)
    assert set(which.tolist()) == {0, 1}
    assert (top < sizes[which, 0] - 32).all()
    assert (left < sizes[which, 1] - 32).all()
    assert len(set(zip(top.tolist(), left.tolist(), strict=True))) > n // 2
    torch.testing.assert_close(frosty[:, 1] - top.view(-1, 1, 1), rows[:32, :32].expand(n, -1, -1).float())
    torch.testing.assert_close(frosty[:, 2] - left.view(-1, 1, 1), columns[:32, :32].expand(n, -1, -1).float())
