"""Images stored as encoded files (JPEG, PNG, ...), decoded batch by batch with Pillow."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from resitta.data.datasets.base import Indices, checked_indices, checked_labels
from resitta.errors import BadData, BadSetting, require

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
RESIZE, CROP = 256, 224
MOST_PIXELS = 1 << 26
"""A little more than the largest picture of ImageNet has; decoded, that many take half a gigabyte."""
MOST_BYTES = 4 * MOST_PIXELS + (1 << 20)
"""A bitmap of that many pixels, with alpha and a header; other formats take less."""


def decode(raw: bytes, name: str, size: int | None) -> npt.NDArray[np.uint8]:
    """Return the pixels of an encoded picture as H×W×3; `name` is for the message when it is damaged."""
    pillow = require("PIL.Image", "bench")
    try:
        with pillow.open(io.BytesIO(raw)) as image:
            check_pixels(image.width, image.height, name)
            picture = image.convert("RGB")
    except BadData:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:  # Pillow has a limit of its own
        raise BadData(f"{name} is too large: {error}; scale it down or remove it.") from error
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        kind = type(error).__name__
        raise BadData(f"{name} is not a readable image ({kind}); restore it or remove it.") from error
    return np.array(picture if size is None else fit(picture, size))


def check_pixels(width: int, height: int, name: str) -> None:
    """Refuse a decompression bomb before it is decoded."""
    if width * height > MOST_PIXELS:
        found = f"{width}×{height} pixels, at most {MOST_PIXELS:,} are decoded"
        raise BadData(f"{name} has {found}; scale it down or remove it.")


def check_bytes(size: int, name: str) -> None:
    """Refuse to read a file that is too large for a picture."""
    if size > MOST_BYTES:
        raise BadData(f"{name} has {size:,} bytes, at most {MOST_BYTES:,} are read; it is no picture: remove it.")


def fit(picture: "Image", size: int) -> "Image":
    """Scale the shorter side to 256/224 of `size`, then cut out the central size×size.

    A picture that already is size×size stays as it is: ImageNet-C was cropped before it was published.
    """
    if picture.size == (size, size):
        return picture
    shorter = round(size * RESIZE / CROP)
    width, height = (int(shorter * side / min(picture.size)) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = picture.resize((width, height), require("PIL.Image", "bench").Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def checked_size(size: int | None) -> int | None:
    """Refuse a size that is no positive whole number; None keeps pictures as they are stored."""
    if size is not None and (not isinstance(size, int) or size < 1):
        raise BadSetting(f"size must be a positive whole number of pixels, or None, not {size!r}.")
    return size


def is_picture(name: str) -> bool:
    """Tell by its ending whether a file should be a picture."""
    return Path(name).suffix.lower() in SUFFIXES


MOST_AT_ONCE = 1 << 31
"""How many bytes of pixels one `read` may return."""


class FileImages:
    """Encoded images under names; `load(name)` gives the bytes of one.

    Only the requested images are in memory. All must have one size after decoding: give `size` to scale and
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
        """Decode images by index, in the given order, to uint8 N×3×H×W."""
        chosen = checked_indices(indices, len(self), self._origin)
        total = len(chosen) * int(np.prod(self._shape))
        if total > MOST_AT_ONCE:
            found = f"{len(chosen):,} images of {self._shape[1]}×{self._shape[0]} pixels"
            advice = "read fewer at once, or give size= to scale and crop them"
            raise BadData(f"{self._origin}: {found} take {total:,} bytes, at most {MOST_AT_ONCE:,} are read; {advice}.")
        pixels = np.empty((len(chosen), *self._shape), np.uint8)
        for row, index in enumerate(chosen):
            image = self._decode(int(index))
            if image.shape != self._shape:
                (height, width, _), (first_height, first_width, _) = image.shape, self._shape
                raise BadData(
                    f"{self._origin}/{self._names[index]} is {width}×{height} pixels but {self._names[0]} is "
                    f"{first_width}×{first_height}; give size= to scale and crop all of them."
                )
            pixels[row] = image
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()

    def _decode(self, index: int) -> npt.NDArray[np.uint8]:
        name = self._names[index]
        return decode(self._load(name), f"{self._origin}/{name}", self._size)


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
