import base64
import io
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from resitta.errors import BadImages, MissingExtra
from resitta.memory.entrobank import EntroBank
from resitta.report.pictures import Pixels, bank_items, data_uri, to_pixels


def read(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


def test_the_bank_is_listed_by_label_and_age() -> None:
    bank = EntroBank(4, generator=torch.Generator())
    images = torch.stack([torch.full((3, 2, 2), shade) for shade in (0.0, 0.2, 1.0)])
    bank.add(images, np.array([1, 0, 1]), np.array([0.5, 0.25, 0.75]))
    items = bank_items(bank, classes=["cat", "dog"])
    found = [(item.label, item.age, item.entropy) for item in items]
    assert found == [("cat", 1, 0.25), ("dog", 0, 0.75), ("dog", 2, 0.5)]
    assert [int(item.image[0, 0, 0]) for item in items] == [51, 255, 0]


def test_without_names_or_without_a_memory() -> None:
    bank = EntroBank(4, generator=torch.Generator())
    bank.add(torch.zeros(1, 3, 2, 2), np.array([7]), np.array([0.5]))
    assert [item.label for item in bank_items(bank)] == ["7"]
    assert bank_items(None) == ()


@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_small_images_keep_their_pixels(height: int, width: int, grey: bool, seed: int) -> None:
    shape = (height, width) if grey else (height, width, 3)
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    with read(data_uri(image)) as found:
        assert found.mode == ("L" if grey else "RGB")
        assert np.array_equal(np.asarray(found), image)


def test_a_view_that_is_not_contiguous_is_fine() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(3, 4, 4).transpose(1, 2, 0)
    with read(data_uri(image)) as found:
        assert np.array_equal(np.asarray(found), image)


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"PIL is not installed; run: .*\[bench\]"):
        data_uri(np.zeros((2, 2, 3), np.uint8))


@pytest.mark.parametrize("image", [np.zeros((2, 2)), np.zeros((3, 8, 8), np.uint8), np.zeros(4, np.uint8)])
def test_other_arrays_are_refused(image: Pixels) -> None:
    with pytest.raises(BadImages, match="H×W×3"):
        data_uri(image)


def test_large_images_shrink_to_the_mean_of_blocks() -> None:
    image = np.zeros((224, 200, 3), np.uint8)
    image[:, 100:] = 200
    with read(data_uri(image)) as found:
        assert found.size == (67, 75)
        assert found.getpixel((0, 0)) == (0, 0, 0)
        assert found.getpixel((33, 0)) == (133, 133, 133)  # of columns 99, 100, 101 two are 200
        assert found.getpixel((66, 74)) == (200, 200, 200)


def test_floats_and_bytes_become_the_same_pixels() -> None:
    pixels = torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4) * 5
    assert np.array_equal(to_pixels(pixels), to_pixels(pixels.float() / 255))
    assert to_pixels(pixels)[0, 1, 2, 0] == pixels[0, 0, 1, 2]
    assert to_pixels(torch.full((1, 3, 1, 1), 1.5)).max() == 255
