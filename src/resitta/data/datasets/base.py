"""The interface of image sets: all labels at once, pixels read on demand."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resitta.errors import BadData, BadSetting

Labels = npt.NDArray[np.int64]
Indices = Sequence[int] | npt.NDArray[np.integer[Any]]


class ImageSet(Protocol):
    """The images of one domain, in a fixed order, read lazily by index.

    A stream decides the order from `labels` alone and then reads batch by batch, so a set may be far larger
    than memory. Any object with these four members is an image set; no base class is needed.
    """

    @property
    def labels(self) -> Labels:
        """The true class of every image, shape (N,)."""

    @property
    def classes(self) -> int:
        """How many classes there are; every label is below it."""

    def __len__(self) -> int: ...

    def read(self, indices: Indices) -> Tensor:
        """Return images by index, in the given order, as uint8 N×3×H×W."""


def checked_indices(indices: Indices, length: int, origin: str) -> Labels:
    """Return indices as int64; refuse any that are not integers or are out of range."""
    found = np.asarray(indices)
    if found.size == 0:
        return np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise BadData(f"{origin} is read by a list of whole numbers, not by {found.ndim}-d {found.dtype}.")
    outside = found[(found < 0) | (found >= length)]
    if outside.size:
        raise BadData(f"{origin} has images 0 to {length - 1}, but image {outside[0]} was asked for.")
    return found.astype(np.int64)


def checked_labels(labels: npt.ArrayLike, length: int, classes: int | None, origin: str) -> tuple[Labels, int]:
    """Return the labels as int64 with the number of classes, by default one more than the highest label."""
    found = np.asarray(labels)
    if length == 0:
        raise BadData(f"{origin} holds no images; give it at least one.")
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise BadData(f"{origin} needs a list of whole numbers as labels, not {found.ndim}-d {found.dtype}.")
    if len(found) != length:
        raise BadData(f"{origin} has {length} images but {len(found)} labels; give one label per image.")
    count = int(found.max()) + 1 if classes is None else classes
    if found.min() < 0 or found.max() >= count:
        raise BadData(f"{origin} has labels {found.min()} to {found.max()}; they must lie in 0 to {count - 1}.")
    return found.astype(np.int64), count


def checked_severity(severity: int) -> int:
    """Refuse a severity that the corrupted sets do not have."""
    if severity not in range(1, 6):
        raise BadSetting(f"severity must be 1, 2, 3, 4 or 5, not {severity!r}.")
    return int(severity)


Array = npt.NDArray[Any]


class ArrayImages:
    """An array of images with its labels.

    `x` is N×H×W×3 or N×3×H×W, uint8 or floats in [0, 1]; channels are taken from the last axis when it has
    length 3. Nothing is copied before `read`, so a memory-mapped array stays on disk.

    >>> images = ArrayImages(np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 0, 1])
    >>> images.read([3, 0]).shape
    torch.Size([2, 3, 8, 8])
    """

    def __init__(
        self, x: Array | Tensor, y: npt.ArrayLike, *, classes: int | None = None, origin: str = "the array"
    ) -> None:
        self._origin = origin
        self._pixels = _channels_first(np.asarray(x), origin)
        self.labels, self.classes = checked_labels(y, len(self._pixels), classes, origin)
        _check_values(self._pixels, origin)

    def __len__(self) -> int:
        return len(self._pixels)

    def read(self, indices: Indices) -> Tensor:
        """Copy images by index, in the given order, as uint8 N×3×H×W."""
        pixels = self._pixels[checked_indices(indices, len(self), self._origin)]
        if pixels.dtype.kind == "f":
            pixels = np.rint(pixels * 255)
        return torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.uint8))


def _channels_first(x: Array, origin: str) -> Array:
    if x.ndim == 4 and x.shape[3] == 3:
        return np.moveaxis(x, 3, 1)
    if x.ndim == 4 and x.shape[1] == 3:
        return x
    raise BadData(f"{origin} has shape {x.shape}; it must be N×H×W×3 or N×3×H×W.")


def _check_values(x: Array, origin: str) -> None:
    if x.dtype == np.uint8:
        return
    if x.dtype.kind != "f":
        raise BadData(f"{origin} has dtype {x.dtype}; it must be uint8, or floats in [0, 1].")
    low, high = x.min(), x.max()
    if not (low >= 0 and high <= 1):  # also refuses NaN
        raise BadData(f"{origin} has floats from {low} to {high}; scale them to [0, 1].")
