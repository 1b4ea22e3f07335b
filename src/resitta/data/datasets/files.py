"""Images that lie as encoded files (JPEG, PNG, ...) and are decoded batch by batch."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resitta.data.datasets.base import Indices, checked_indices, checked_labels
from resitta.data.datasets.pictures import checked_size, decode, is_picture
from resitta.errors import BadData

MOST_AT_ONCE = 1 << 31
"""How many bytes of pixels one `read` may return."""


class FileImages:
    """Encoded images under names; `load(name)` gives the bytes of one.

    Only the images asked for are ever in memory. All must come out equally large: give `size` to scale and
    crop them, or None when they are stored that way.
    """

    def __init__(
        self,
        names: Sequence[str],
        labels: npt.ArrayLike,
        load: Callable[[str], bytes],
        *,
        origin: str,
        classes: int | None = None,
        size: int | None = None,
    ) -> None:
        self.labels, self.classes = checked_labels(labels, len(names), classes, origin)
        self._names, self._load, self._origin, self._size = names, load, origin, checked_size(size)
        self._shape = self._decode(0).shape

    def __len__(self) -> int:
        return len(self._names)

    def read(self, indices: Indices) -> Tensor:
        """Decode the images asked for, in that order, to uint8 N×3×H×W."""
        chosen = checked_indices(indices, len(self), self._origin)
        total = len(chosen) * int(np.prod(self._shape))
        if total > MOST_AT_ONCE:
            found = f"{len(chosen):,} images of {self._shape[1]}×{self._shape[0]} pixels"
            advice = "read fewer at once, or give size= to scale and crop them"
            raise BadData(f"{self._origin}: {found} take {total:,} bytes, at most {MOST_AT_ONCE:,} are read; {advice}.")
        pixels = np.empty((len(chosen), *self._shape), np.uint8)
        for row, index in enumerate(chosen):
            pixels[row] = self._decode_alike(int(index))
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def _decode(self, index: int) -> npt.NDArray[np.uint8]:
        name = self._names[index]
        return decode(self._load(name), f"{self._origin}/{name}", self._size)

    def _decode_alike(self, index: int) -> npt.NDArray[np.uint8]:
        pixels = self._decode(index)
        if pixels.shape != self._shape:
            (height, width, _), (first_height, first_width, _) = pixels.shape, self._shape
            raise BadData(
                f"{self._origin}/{self._names[index]} is {width}×{height} pixels but {self._names[0]} is "
                f"{first_width}×{first_height}; give size= to scale and crop all of them."
            )
        return pixels


def labelled(files: dict[str, list[str]], origin: str) -> tuple[list[str], list[int]]:
    """Turn {class: file names} into sorted `class/name` entries and the index of the sorted class of each.

    >>> labelled({"dog": ["b.png", "a.png"], "cat": ["x.png"]}, "pets")
    (['cat/x.png', 'dog/a.png', 'dog/b.png'], [0, 1, 1])
    """
    names, labels = [], []
    for label, folder in enumerate(sorted(files)):
        for file in sorted(files[folder]):
            if not is_picture(file):
                raise BadData(f"{origin}/{folder}/{file} is not an image file; move it elsewhere.")
            names.append(f"{folder}/{file}")
            labels.append(label)
    return names, labels
