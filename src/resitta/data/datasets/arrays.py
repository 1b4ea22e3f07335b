"""Images that already lie in an array, in memory or memory-mapped."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resitta.data.datasets.base import Indices, checked_indices, checked_labels
from resitta.errors import BadData

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
        self,
        x: Array | Tensor,
        y: npt.ArrayLike,
        *,
        classes: int | None = None,
        origin: str = "the array",
    ) -> None:
        self._origin = origin
        self._pixels = _channels_first(np.asarray(x), origin)
        self.labels, self.classes = checked_labels(y, len(self._pixels), classes, origin)
        _check_values(self._pixels, origin)

    def __len__(self) -> int:
        return len(self._pixels)

    def read(self, indices: Indices) -> Tensor:
        """Copy the images asked for, in that order, as uint8 N×3×H×W."""
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
    if not (low >= 0 and high <= 1):  # written so that NaN is refused too
        raise BadData(f"{origin} has floats from {low} to {high}; scale them to [0, 1].")
