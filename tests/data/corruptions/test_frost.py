import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from resitta.data.corruptions import frost

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh_textures() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    frost.textures.cache_clear()
    frost._originals.cache_clear()


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A stand-in for the package with the public textures, which fails when imported."""
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('this package must not be imported')")
    random = np.random.default_rng(0)
    made = {}
    for number, name in enumerate(frost._FILES):
        made[name] = random.integers(0, 256, (200 + 10 * number, 180, 3), dtype=np.uint8)
        pillow.fromarray(made[name]).save(folder / name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imagecorruptions", raising=False)
    return made


def test_the_public_photographs_are_read_without_importing_their_package(
    photographs: dict[str, np.ndarray],
) -> None:
    assert frost.frost_texture_source() == "public"
    pictures, sizes = frost.textures(1.0, 64, 64, CPU)
    assert sizes.tolist() == [[200 + 10 * i, 180] for i in range(5)]
    assert np.array_equal(pictures[0, :, :200].permute(1, 2, 0).numpy(), photographs["frost1.png"])


def test_shrinking_to_a_fifth_picks_every_fifth_pixel(photographs: dict[str, np.ndarray]) -> None:
    pictures, sizes = frost.textures(0.2, 32, 32, CPU)
    assert sizes[0].tolist() == [40, 36]
    expected = photographs["frost1.png"][2::5, 2::5]
    assert np.array_equal(pictures[0, :, :40].permute(1, 2, 0).numpy(), expected)


def test_textures_grow_where_the_images_are_larger(photographs: dict[str, np.ndarray]) -> None:
    _, sizes = frost.textures(1.0, 300, 250, CPU)
    assert (sizes[:, 0] >= 300).all()
    assert (sizes[:, 1] >= 250).all()


def test_without_the_photographs_textures_are_painted_in_their_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frost, "_folder", lambda: None)
    assert frost.frost_texture_source() == "painted"
    pictures, sizes = frost.textures(1.0, 224, 224, CPU)
    assert (sizes >= 225).all()
    for picture, (colour, contrast) in zip(pictures.float(), frost._LOOKS, strict=True):
        assert picture.mean((1, 2)).tolist() == pytest.approx(colour, abs=3)
        assert picture.mean(0).std().item() == pytest.approx(contrast, rel=0.05)
    forget()
    assert torch.equal(frost.textures(1.0, 224, 224, CPU)[0], pictures)
