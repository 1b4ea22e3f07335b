"""Read tensors, NumPy arrays, PIL images and lists of them as tensors whose axes are known."""

from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadImages
from resitta.inputs import hints
from resitta.inputs.checks import FLOATS, check_dense

Array = NDArray[Any]
Layout = Literal["NCHW", "NHWC", "NHW", "CHW", "HWC", "HW"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
WHITE = {torch.uint8: 255, torch.uint16: 65535, torch.bool: 1}
"""The value of white in images that are not floats."""
ARRAYS = ("uint8", "uint16", "bool", "float16", "float32", "float64")
GREY = ("1", "L", "LA", "La")
"""Modes of PIL's grey images of at most 8 bits."""
TYPES = "uint8, uint16, bool, or floating point in [0, 1]"


def read(source: Any, layout: Layout | None = None) -> list[Tensor]:
    """Return all images of a source as views N×C×H×W.

    >>> [tuple(images.shape) for images in read([np.zeros((5, 6, 3)), np.zeros((7, 8, 3))])]
    [(1, 3, 5, 6), (1, 3, 7, 8)]
    """
    if not isinstance(source, list | tuple):
        return [_read_one(source, layout)]
    if not source or not all(_is_image(one) for one in source):
        raise BadImages(f"images must be a batch, {hints.instead_of(source)}")
    return [_read_one(one, layout) for one in source]


def is_list_of_images(value: Any) -> bool:
    """Tell a list of single images from a pair of images and labels.

    >>> image = torch.zeros(3, 8, 8)
    >>> is_list_of_images([image, image]), is_list_of_images([image, 3])
    (True, False)
    """
    return isinstance(value, list | tuple) and bool(value) and all(_is_image(one) for one in value)


def _is_image(one: Any) -> bool:
    return _is_picture(one) or (isinstance(one, Tensor | np.ndarray) and one.ndim in (2, 3))


def _read_one(source: Any, layout: Layout | None) -> Tensor:
    if _is_picture(source):
        array = _array_of(source)
        return _in_order(_tensor_of(array), "HWC" if array.ndim == 3 else "HW")
    if not isinstance(source, Tensor | np.ndarray):
        raise BadImages(f"images must be a batch, {hints.instead_of(source)}")
    if isinstance(source, Tensor):
        check_dense(source)
    known = source.dtype in (*FLOATS, *WHITE) if isinstance(source, Tensor) else source.dtype.name in ARRAYS
    if not known:
        raise BadImages(f"images must be {TYPES}, {hints.unfit_type(source)}")
    return _in_order(source if isinstance(source, Tensor) else _tensor_of(source), layout or _layout_of(source))


def _layout_of(images: Tensor | Array) -> Layout:
    """Which axes are which, if the shape leaves no doubt."""
    shape = tuple(images.shape)
    readings = [layout for layout in LAYOUTS if len(layout) == len(shape) and _may_be(layout, images)]
    if len(shape) == 4 and isinstance(images, Tensor) and images.dtype in FLOATS:  # what torch itself takes
        readings = ["NCHW", "NHWC"] if hints.looks_channels_last(shape) else ["NCHW"]
    if len(readings) != 1:
        raise BadImages(f"images must have the axes N×C×H×W, found {hints.unclear_layout(shape, readings)}")
    return readings[0]


def _may_be(layout: Layout, images: Tensor | Array) -> bool:
    """Whether images have these axes: floats with two axes may be rows of features, with three and no height audio."""
    shape = tuple(images.shape)
    if layout == "HW":
        return "float" not in str(images.dtype)
    if layout == "CHW" and shape[1] in (1, 2) and shape[2] not in hints.CHANNELS:
        return False
    return "C" in layout and shape[layout.index("C")] in hints.CHANNELS


def _in_order(images: Tensor, layout: Layout) -> Tensor:
    if len(layout) != images.ndim:
        raise BadImages(f"layout={layout!r} names {len(layout)} axes, found shape {tuple(images.shape)}; name them all")
    axes: str = layout
    for letter in "CN":
        if letter not in axes:
            images, axes = images[None], letter + axes
    images = images.permute([axes.index(letter) for letter in "NCHW"])
    if not images.numel():
        raise BadImages(f"the batch is empty: shape {tuple(images.shape)}; pass at least one image")
    return images


def _tensor_of(array: Array) -> Tensor:
    """Share the memory, unless it is read-only, of another byte order, or strided as no tensor may be."""
    dense = np.require(array, array.dtype.newbyteorder("="), ["C_CONTIGUOUS", "WRITEABLE"])
    return torch.from_numpy(dense if min(dense.strides, default=0) >= 0 else dense.copy())  # of an axis of length 1


def _array_of(picture: Any) -> Array:
    """Decode a PIL image: grey ones stay grey, all others become RGB as Pillow converts them."""
    mode = picture.mode
    try:
        if mode.startswith("I") or mode == "F":
            return _deep(np.asarray(picture), mode)
        return np.asarray(picture.convert("L" if mode in GREY else "RGB"))
    except (BadImages, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        raise BadImages(f"a PIL image of mode {mode} is damaged ({error}); leave it out") from error


def _deep(values: Array, mode: str) -> Array:
    """Return grey values of 16 bits, which Pillow may hold in 32, or floats."""
    if mode == "F":
        return values
    if values.size and not 0 <= values.min() <= values.max() <= WHITE[torch.uint16]:
        found = f"{values.min()} to {values.max()}"
        raise BadImages(f"a PIL image of mode {mode} must hold 0 to 65535, found {found}; scale it to that")
    return values.astype(np.uint16)


def _is_picture(value: Any) -> bool:
    return any(cls.__module__.startswith("PIL.") and cls.__name__ == "Image" for cls in type(value).__mro__)
