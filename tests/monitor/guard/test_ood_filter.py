"""Screening: flat images, pure noise and shrugs are unknown; real images are known, however badly corrupted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.monitor.guard.conftest import pictures
from torch import Tensor, nn

from resitta import adapt
from resitta.data.corrupted import evenly
from resitta.data.corruptions import CORRUPTIONS, corrupt
from resitta.data.datasets import open_images
from resitta.monitor.guard import Guard
from resitta.monitor.guard.ood_filter import contrast, is_clipped, is_noise, unknown

SETTINGS = Guard()


def strange(images: Tensor, logits: Tensor | None = None) -> Tensor:
    sure = torch.tensor([9.0] + [0.0] * 9).expand(len(images), 10)
    bounds = {"max_entropy": SETTINGS.max_sample_entropy, "min_contrast": SETTINGS.min_contrast}
    return unknown(images, sure if logits is None else logits, **bounds)


def test_contrast_is_the_deviation_within_channels() -> None:
    images = torch.rand(5, 3, 9, 7)
    images[:, 1] += 10  # a tint is no contrast
    expected = [np.sqrt(np.mean([channel.var() for channel in image])) for image in images.numpy()]
    np.testing.assert_allclose(contrast(images), expected, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_flat_images_are_unknown(value: float) -> None:
    assert strange(torch.full((3, 3, 32, 32), value)).all()


@pytest.mark.parametrize("size", [16, 32, 64, 224])
def test_noise_is_found_and_pictures_are_not(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(100, 3, size, size, generator=generator)
    assert is_noise(noise).float().mean() > 0.9
    assert not is_noise(pictures(100, size)).any()
    noisy = (pictures(100, size) + 0.3 * torch.randn(100, 3, size, size, generator=generator)).clamp(0, 1)
    assert not is_noise(noisy).any()


def test_small_images_have_too_few_blocks_to_tell() -> None:
    assert not is_noise(torch.rand(50, 3, 15, 40)).any()


def test_a_shrug_is_unknown() -> None:
    logits = torch.tensor([[0.0] * 10, [3.0] + [0.0] * 9, [torch.nan] * 10])
    assert strange(pictures(3), logits).tolist() == [True, False, False]  # a memory refuses NaN by itself


def test_clipped_images_are_unknown_but_not_white_ones() -> None:
    images = pictures(20, 32)
    assert is_clipped(((images - 0.5) * 500 + 0.5).clamp(0, 1)).all()
    assert not is_clipped((images + 1).clamp(0, 1)).any()
    assert not is_clipped(images).any()
    mostly = images.clone()
    mostly[:, :, :24] = images[:, :, :24].round()  # a quarter of the pixels is left
    assert not is_clipped(mostly).any()


def test_normalised_images_are_judged_by_their_pixels(model: nn.Module) -> None:
    faint = 0.5 + 0.001 * (pictures(64) - 0.5)
    normalized = ([0.5] * 3, [0.001] * 3)
    for images, how in ((faint, None), ((faint - 0.5) / 0.001, normalized)):
        adapter = adapt(model, "resitta", guard=True, normalized=how)
        adapter(images)
        assert adapter.guard is not None
        assert adapter.guard.counts["unknown"] == 64


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corrupted_real_images_are_known(beds: Path, name: str) -> None:
    images = evenly(open_images(beds / "cifar10-test.zip"), 200).read(np.arange(200))
    corrupted = corrupt(images, name, 5, seed=0).float() / 255
    assert not strange(corrupted).any()
