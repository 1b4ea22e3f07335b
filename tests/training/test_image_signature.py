from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from resitta.training.image_signature import NUMBERS, image_signature

Floats = NDArray[np.float64]
GREY = (0.2989, 0.587, 0.114)


def mean_square(plane: list[list[float]]) -> float:
    values = [value**2 for row in plane for value in row]
    return sum(values) / max(1, len(values))


def down(plane: list[list[float]]) -> list[list[float]]:
    return [[below - above for above, below in zip(*rows, strict=True)] for rows in pairwise(plane)]


def across(plane: list[list[float]]) -> list[list[float]]:
    return [[b - a for a, b in pairwise(row)] for row in plane]


def halved(plane: list[list[float]]) -> list[list[float]]:
    if min(len(plane), len(plane[0])) < 2:
        return plane
    return [
        [
            (plane[2 * y][2 * x] + plane[2 * y][2 * x + 1] + plane[2 * y + 1][2 * x] + plane[2 * y + 1][2 * x + 1]) / 4
            for x in range(len(plane[0]) // 2)
        ]
        for y in range(len(plane) // 2)
    ]


def log_amplitude(*planes: list[list[float]]) -> float:
    return float(0.5 * np.log(sum(mean_square(plane) for plane in planes) + 1e-6))


def by_hand(image: Floats) -> list[float]:
    """The nine numbers of one image, C×H×W, pixel by pixel."""
    red, blue = image[0], image[-1]
    shades = sum(w * c for w, c in zip(GREY, image, strict=True)) if len(image) == 3 else image.mean(axis=0)
    grey = np.asarray(shades).tolist()
    mean = float(np.mean(shades))
    first = down(grey), across(grey)
    second = down(first[0]), across(first[1])
    third = down(second[0]), across(second[1])
    small = halved(grey)
    tints = [(c - shades).tolist() for c in ((red, blue) if len(image) > 2 else (red,))]
    # of two colours one difference each: red down and across, and the same for blue
    return [
        mean,
        log_amplitude([[value - mean for value in row] for row in grey]),
        log_amplitude(*first),
        log_amplitude(*second),
        log_amplitude(*third),
        log_amplitude(down(small), across(small)),
        0.5 * float(np.log(np.mean([mean_square(t) for t in tints]) + 1e-6)),
        0.5 * float(np.log(sum(np.mean([mean_square(d(t)) for t in tints]) for d in (down, across)) + 1e-6)),
        0.5 * float(np.log(sum(np.mean([mean_square(d(d(t))) for t in tints]) for d in (down, across)) + 1e-6)),
    ]


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 7, 11), (1, 6, 6), (3, 4, 3), (3, 2, 2), (3, 1, 5), (3, 1, 1)])
def test_nine_numbers_by_hand(shape: tuple[int, int, int]) -> None:
    images = torch.rand(3, *shape).double()
    expected = torch.tensor([by_hand(image) for image in images.numpy()], dtype=torch.float64)
    torch.testing.assert_close(image_signature(images).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 1, 1), (4, 8, 8), (2, 5, 5)])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_constant_images_have_finite_numbers(shape: tuple[int, int, int], value: float) -> None:
    found = image_signature(torch.full((2, *shape), value))
    assert found.shape == (2, NUMBERS)
    assert found.isfinite().all()
    assert found[:, 0].tolist() == pytest.approx([value] * 2, abs=1e-3)
    assert found[0, 1:].tolist() == pytest.approx([0.5 * np.log(1e-6)] * 8, abs=0.05)


def test_grey_images_have_no_colour() -> None:
    grey = torch.rand(2, 1, 8, 8)
    assert image_signature(grey)[:, 6:].flatten().tolist() == pytest.approx([0.5 * np.log(1e-6)] * 6)
    torch.testing.assert_close(image_signature(grey.expand(-1, 3, -1, -1)), image_signature(grey), atol=0.05, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_any_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    images = torch.rand(2, 3, 8, 8).to(dtype)
    found = image_signature(images)
    assert found.dtype == torch.float32
    assert torch.equal(found, image_signature(images.float()))


def test_each_image_by_itself() -> None:
    images = torch.rand(5, 3, 8, 8)
    torch.testing.assert_close(image_signature(images), torch.cat([image_signature(image[None]) for image in images]))


def test_a_mirror_image_has_the_same_signature() -> None:
    images = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(image_signature(images.flip(-1)), image_signature(images))


def test_noise_blur_and_fog_change_it_in_different_directions() -> None:
    clouds = torch.nn.functional.interpolate(torch.rand(16, 3, 4, 4), size=(16, 16), mode="bilinear")
    images = (clouds + 0.05 * torch.randn(16, 3, 16, 16)).clamp(0, 1)
    plain = image_signature(images).mean(0)
    noisy = image_signature((images + 0.1 * torch.randn(images.shape)).clamp(0, 1)).mean(0) - plain
    blurred = image_signature(torch.nn.functional.avg_pool2d(images, 3, 1, 1, count_include_pad=False)).mean(0) - plain
    foggy = image_signature(0.5 + images / 2).mean(0) - plain
    assert noisy[4] > noisy[2] > 0.3  # third differences grow most
    assert blurred[4] < blurred[2] < -0.3
    assert foggy[0] > 0.2
    assert (foggy[1:] < -0.5).all()  # contrast and everything with it
