import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from resitta.errors import BadImages
from resitta.report.png import data_uri, png, to_pixels


@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_pillow_reads_the_same_pixels(height: int, width: int, grey: bool, seed: int) -> None:
    shape = (height, width) if grey else (height, width, 3)
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    with Image.open(io.BytesIO(png(image))) as read:
        assert read.mode == ("L" if grey else "RGB")
        assert np.array_equal(np.asarray(read), image)


def test_a_view_that_is_not_contiguous_is_fine() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(3, 4, 4).transpose(1, 2, 0)
    with Image.open(io.BytesIO(png(image))) as read:
        assert np.array_equal(np.asarray(read), image)


@pytest.mark.parametrize("image", [np.zeros((2, 2)), np.zeros((3, 8, 8), np.uint8), np.zeros(4, np.uint8)])
def test_other_arrays_are_refused(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    with pytest.raises(BadImages, match="H×W×3"):
        png(image)


def test_large_images_shrink_to_the_mean_of_blocks() -> None:
    image = np.zeros((224, 200, 3), np.uint8)
    image[:, 100:] = 200
    encoded = data_uri(image).removeprefix("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as read:
        assert read.size == (66, 74)
        assert read.getpixel((0, 0)) == (0, 0, 0)
        assert read.getpixel((33, 0)) == (133, 133, 133)  # of columns 99, 100, 101 two are 200
        assert read.getpixel((65, 73)) == (200, 200, 200)


def test_floats_and_bytes_become_the_same_pixels() -> None:
    pixels = torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4) * 5
    assert np.array_equal(to_pixels(pixels), to_pixels(pixels.float() / 255))
    assert to_pixels(pixels)[0, 1, 2, 0] == pixels[0, 0, 1, 2]
    assert to_pixels(torch.full((1, 3, 1, 1), 1.5)).max() == 255
