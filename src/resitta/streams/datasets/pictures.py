"""Decode one picture with Pillow and bring it to size the way ImageNet is evaluated."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from resitta.errors import BadData, BadSetting, require

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
RESIZE, CROP = 256, 224


def decode(raw: bytes, name: str, size: int | None) -> npt.NDArray[np.uint8]:
    """Return the pixels of an encoded picture as H×W×3; `name` is for the message when it is damaged."""
    pillow = require("PIL.Image", "bench")
    try:
        with pillow.open(io.BytesIO(raw)) as image:
            picture = image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        kind = type(error).__name__
        raise BadData(f"{name} is not a readable image ({kind}); restore it or remove it.") from error
    return np.array(picture if size is None else fit(picture, size))


def fit(picture: "Image", size: int) -> "Image":
    """Scale the shorter side to 256/224 of `size`, then cut out the central size×size.

    A picture that already is size×size stays as it is: ImageNet-C was cropped before it was published.

    >>> from PIL import Image
    >>> fit(Image.new("RGB", (640, 480)), 224).size
    (224, 224)
    """
    if picture.size == (size, size):
        return picture
    shorter = round(size * RESIZE / CROP)
    width, height = (int(shorter * side / min(picture.size)) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = picture.resize((width, height), require("PIL.Image", "bench").Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def checked_size(size: int | None) -> int | None:
    """Refuse a size that is no positive whole number; None keeps pictures as they are stored.

    >>> checked_size(0)
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: size must be a positive whole number of pixels, or None, not 0.
    """
    if size is not None and (not isinstance(size, int) or size < 1):
        raise BadSetting(f"size must be a positive whole number of pixels, or None, not {size!r}.")
    return size


def is_picture(name: str) -> bool:
    """Tell by its ending whether a file should be a picture.

    >>> is_picture("ILSVRC2012_val_00000293.JPEG"), is_picture("notes.txt")
    (True, False)
    """
    return Path(name).suffix.lower() in SUFFIXES
