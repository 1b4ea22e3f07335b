from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resitta.data.datasets import ArrayImages, ImageSet
from resitta.data.datasets.base import Indices, checked_indices, checked_labels, checked_severity
from resitta.errors import BadData, BadSetting


def test_no_indices_are_fine() -> None:
    assert checked_indices([], 3, "set").shape == (0,)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([-1], "set has images 0 to 2, but image -1 was asked for"),
        (np.array([0, 3], np.uint8), "image 3 was asked for"),
        (np.array([[0]]), "not by 2-d int64"),
        (np.array([0.0]), "not by 1-d float64"),
        (np.array([True, False]), "not by 1-d bool"),
    ],
)
def test_bad_indices(indices: Indices, message: str) -> None:
    with pytest.raises(BadData, match=message):
        checked_indices(indices, 3, "set")


def test_labels_become_int64() -> None:
    labels, classes = checked_labels(np.array([3, 0], np.uint8), 2, None, "set")
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 0]
    assert classes == 4


def test_classes_may_exceed_the_labels() -> None:
    assert checked_labels([0, 1], 2, 10, "set")[1] == 10


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0], None, "set has 2 images but 1 labels"),
        ([0.0, 1.0], None, "not 1-d float64"),
        ([[0], [1]], None, "not 2-d int64"),
        ([0, -1], None, "set has labels -1 to 0"),
        ([0, 3], 3, "set has labels 0 to 3; they must lie in 0 to 2"),
    ],
)
def test_bad_labels(labels: list[int], classes: int | None, message: str) -> None:
    with pytest.raises(BadData, match=message):
        checked_labels(labels, 2, classes, "set")


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(BadData, match="holds no images"):
        checked_labels([], 0, None, "set")


@pytest.mark.parametrize("severity", [0, 6, "5", None, 2.5])
def test_bad_severity(severity: int) -> None:
    with pytest.raises(BadSetting, match="severity must be 1, 2, 3, 4 or 5"):
        checked_severity(severity)


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
