from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.data.datasets import ArrayImages, ImageSet
from resitta.errors import BadData

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
LABELS = [0, 1, 2, 1, 0]


@pytest.mark.parametrize(
    "x",
    [PIXELS, PIXELS.transpose(0, 3, 1, 2), torch.from_numpy(PIXELS), PIXELS / 255, (PIXELS / 255).astype(np.float32)],
    ids=["NHWC", "NCHW", "tensor", "float64", "float32"],
)
def test_every_layout_and_dtype_reads_the_same(x: npt.NDArray[Any]) -> None:
    images: ImageSet = ArrayImages(x, LABELS)
    batch = images.read([4, 0])
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous()
    for row, index in enumerate([4, 0]):
        for channel in range(3):
            assert np.array_equal(batch[row, channel], PIXELS[index, :, :, channel])
    assert (len(images), images.classes, images.labels.tolist()) == (5, 3, LABELS)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=8))
def test_order_and_repeats_are_kept(indices: list[int]) -> None:
    batch = ArrayImages(PIXELS, LABELS).read(indices)
    assert np.array_equal(batch.permute(0, 2, 3, 1), PIXELS[indices].reshape(-1, 4, 6, 3))


def test_what_is_read_is_a_copy() -> None:
    x = PIXELS.copy()
    ArrayImages(x, LABELS).read([0]).zero_()
    assert np.array_equal(x, PIXELS)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (PIXELS[0], r"photos has shape \(4, 6, 3\)"),
        (PIXELS[..., :1], r"photos has shape \(5, 4, 6, 1\)"),
        (PIXELS.astype(np.int32), "photos has dtype int32"),
        (PIXELS.astype(float), "photos has floats from .* scale them to"),
        (np.full(PIXELS.shape, -0.1), "photos has floats from -0.1"),
        (np.full(PIXELS.shape, np.nan), "photos has floats from nan"),
        (PIXELS[:0], "photos holds no images"),
    ],
)
def test_bad_arrays(x: npt.NDArray[Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        ArrayImages(x, LABELS[: len(x)], origin="photos")


def test_floats_are_rounded_not_cut() -> None:
    x = np.full((1, 2, 2, 3), 0.999)
    assert ArrayImages(x, [0]).read([0]).min() == 255
