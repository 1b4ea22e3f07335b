"""AugMix's operations, against Pillow's and by hand."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

Image = pytest.importorskip("PIL.Image")
ops = pytest.importorskip("PIL.ImageOps")


@pytest.fixture(scope="module")
def augmix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("augmix", Path(__file__).parents[2] / "benchmarks" / "augmix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "level", "pillow"),
    [
        ("_autocontrast", 0.2, ops.autocontrast),
        ("_equalize", 0.2, ops.equalize),
        ("_posterize", 0.1, lambda picture: ops.posterize(picture, 4)),
        ("_posterize", 0.28, lambda picture: ops.posterize(picture, 3)),
        ("_solarize", 0.25, lambda picture: ops.solarize(picture, 192)),
    ],
)
def test_pixel_operations_agree_with_pillow(augmix: ModuleType, name: str, level: float, pillow: object) -> None:
    array = np.random.default_rng(1).integers(20, 230, (32, 32, 3)).astype(np.uint8)
    image = torch.from_numpy(array).permute(2, 0, 1)[None].float() / 255
    ours = getattr(augmix, name)(image, torch.tensor([level]))[0].permute(1, 2, 0).mul(255).round().numpy()
    theirs = np.asarray(pillow(Image.fromarray(array)), dtype=np.float32)  # type: ignore[operator]
    assert np.abs(ours - theirs).max() <= 2  # Pillow rounds down in its tables


def test_a_mixture_stays_an_image_and_differs(augmix: ModuleType) -> None:
    torch.manual_seed(0)
    images = torch.rand(64, 3, 32, 32)
    mixed = augmix.augmix(images)
    assert mixed.min() >= 0
    assert mixed.max() <= 1
    assert ((mixed - images).abs().flatten(1).mean(1) > 1e-3).float().mean() > 0.9


def test_consistency_is_the_jensen_shannon_divergence(augmix: ModuleType) -> None:
    logits = torch.randn(6, 5, dtype=torch.float64)
    p = logits.softmax(1).view(3, 2, 5)
    mean = p.mean(0)
    expected = sum((q * (q / mean).log()).sum(1).mean() for q in p) / 3
    torch.testing.assert_close(augmix.consistency(logits), expected)
