import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.data.corruptions import weather
from resitta.data.corruptions.random import Draws
from resitta.data.corruptions.tables import setting
from resitta.data.corruptions.weather import plasma


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


class Recorded(Draws):
    """Remembers what it handed out."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__(keys)
        self.given: list[NDArray[np.float64]] = []

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        drawn = super().uniform(*shape, low=low, high=high)
        self.given.append(drawn[0].double().numpy())
        return drawn


def by_loops(noise: list[NDArray[np.float64]], side: int) -> NDArray[np.float64]:
    """Diamond-square point by point, on one map whose far edges touch."""
    heights = np.zeros((side, side))
    step = side
    for level in noise:
        half = step // 2
        for kind, (row, column) in enumerate([(half, half), (0, half), (half, 0)]):
            arms = [(half, half), (half, -half), (-half, half), (-half, -half)]
            if kind > 0:
                arms = [(half, 0), (-half, 0), (0, half), (0, -half)]
            for i in range(side // step):
                for j in range(side // step):
                    y, x = row + i * step, column + j * step
                    mean = sum(heights[(y + a) % side, (x + b) % side] for a, b in arms) / 4
                    heights[y, x] = mean + level[kind, i, j]
        step = half
    heights -= heights.min()
    return np.asarray(heights / heights.max())


def test_agrees_with_diamond_square_point_by_point() -> None:
    draws = Recorded(torch.tensor([5]))
    cloud = plasma(draws, 16, 1.75)[0].numpy()
    noise = [given for given in draws.given if len(given) == 3]
    assert np.allclose(cloud, by_loops(noise, 16), atol=1e-5)


def test_details_fade_with_the_square_of_the_decay() -> None:
    draws = Recorded(torch.tensor([5]))
    plasma(draws, 32, 3.0)
    largest = [np.abs(given).max() for given in draws.given if len(given) == 3]
    assert len(largest) == 5
    assert 5_000 < largest[0] <= 10_000
    assert largest[-1] <= 10_000 / 3.0**8


def test_clouds_of_a_batch_differ() -> None:
    clouds = plasma(Draws(torch.arange(3)), 8, 2.0)
    assert not torch.equal(clouds[0], clouds[1])
    assert clouds.amin((1, 2)).tolist() == [0, 0, 0]
    assert clouds.amax((1, 2)).tolist() == [1, 1, 1]


CPU, TEXTURES = torch.device("cpu"), weather.textures


@pytest.fixture(autouse=True)
def _fresh_textures() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    TEXTURES.cache_clear()
    weather._originals.cache_clear()


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A stand-in for the package with the public textures, which fails when imported."""
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('this package must not be imported')")
    random = np.random.default_rng(0)
    made = {}
    for number, name in enumerate(weather._FILES):
        made[name] = random.integers(0, 256, (200 + 10 * number, 180, 3), dtype=np.uint8)
        pillow.fromarray(made[name]).save(folder / name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    return made


def test_the_public_photographs_are_read_without_importing_their_package(
    photographs: dict[str, np.ndarray],
) -> None:
    assert weather.frost_texture_source() == "public"
    pictures, sizes = weather.textures(1.0, 64, 64, CPU)
    assert sizes.tolist() == [[200 + 10 * i, 180] for i in range(5)]
    assert np.array_equal(pictures[0, :, :200].permute(1, 2, 0).numpy(), photographs["frost1.png"])


def test_shrinking_to_a_fifth_picks_every_fifth_pixel(photographs: dict[str, np.ndarray]) -> None:
    pictures, sizes = weather.textures(0.2, 32, 32, CPU)
    assert sizes[0].tolist() == [40, 36]
    expected = photographs["frost1.png"][2::5, 2::5]
    assert np.array_equal(pictures[0, :, :40].permute(1, 2, 0).numpy(), expected)


def test_textures_grow_where_the_images_are_larger(photographs: dict[str, np.ndarray]) -> None:
    _, sizes = weather.textures(1.0, 300, 250, CPU)
    assert (sizes[:, 0] >= 300).all()
    assert (sizes[:, 1] >= 250).all()


def test_without_the_photographs_textures_are_painted_in_their_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weather, "_folder", lambda: None)
    assert weather.frost_texture_source() == "painted"
    pictures, sizes = weather.textures(1.0, 224, 224, CPU)
    assert (sizes >= 225).all()
    for picture, (colour, contrast) in zip(pictures.float(), weather._LOOKS, strict=True):
        assert picture.mean((1, 2)).tolist() == pytest.approx(colour, abs=3)
        assert picture.mean(0).std().item() == pytest.approx(contrast, rel=0.05)
    forget()
    assert torch.equal(weather.textures(1.0, 224, 224, CPU)[0], pictures)
