"""What to write instead: the expression that turns images as they come from other libraries into a batch for us."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHANNELS = (1, 3, 4)
"""How many channels pictures have."""
BGR = "OpenCV reads BGR"


def instead_of(found: Any) -> str:
    """Say what was found in the place of a tensor, and what to pass.

    >>> instead_of(np.zeros((2, 8, 8, 3), np.uint8))[:80]
    'found an ndarray of uint8 with shape (2, 8, 8, 3); pass torch.from_numpy(images)'
    >>> instead_of({"label": 3, "image": torch.zeros(2, 3, 8, 8)})
    "found a dict with the keys 'label', 'image'; pass batch['image']"
    """
    if isinstance(found, np.ndarray):
        what = f"found an ndarray of {found.dtype} with shape {found.shape}"
        return f"{what}; pass {as_batch('torch.from_numpy(images)', found.shape, found.dtype == np.uint8)}" + (
            f" ({BGR}: images[..., ::-1].copy() first)" if _channels_at_end(found.shape) else ""
        )
    if _is_picture(found):
        return f"found a PIL image; pass {_stacked('[images]')}"
    if isinstance(found, Mapping):
        return _in_mapping(found)
    if isinstance(found, Sequence) and not isinstance(found, str | bytes) and len(found):
        return _in_sequence(found)
    return f"found {_name(found)}; try torch.as_tensor(images)"


def as_batch(images: str, shape: Sequence[int], is_bytes: bool) -> str:
    """Write the expression that turns images of a shape into floats N×C×H×W.

    >>> as_batch("images", (8, 32, 32, 3), True), as_batch("images", (3, 32, 32), False)
    ('images.permute(0, 3, 1, 2).float() / 255', 'images[None]')
    """
    if len(shape) == 3:
        images += "[None]"
        shape = (1, *shape)
    if _channels_at_end(shape):
        images += ".permute(0, 3, 1, 2)"
    return f"{images}.float() / 255" if is_bytes else images


def layout_hint(images: Tensor, then: str = "") -> str:
    """Name the axes of images whose channels come last, for the end of a sentence; nothing for others.

    >>> layout_hint(torch.zeros(2, 32, 32, 3))
    '; they look like N×H×W×C: pass images.permute(0, 3, 1, 2)'
    """
    if not _channels_at_end(images.shape):
        return ""
    return f"; they look like N×H×W×C: pass {as_batch('images', images.shape, False)}{then}"


def to_floats(images: Tensor) -> str:
    """Write what turns a tensor of another type into images, whatever the order of its axes.

    >>> to_floats(torch.zeros(2, 32, 32, 3, dtype=torch.uint8))
    'divide by 255: images.permute(0, 3, 1, 2).float() / 255 (OpenCV reads BGR: images.flip(-1) first)'
    """
    if images.is_complex():
        return "take the magnitude, images.abs(), if that is an image"
    if images.dtype == torch.uint8:
        return f"divide by 255: {as_batch('images', images.shape, True)}{_flip(images)}"
    converted = as_batch("images", images.shape, False)
    whole = "" if images.is_floating_point() else ", and divide by the highest possible value"
    return f"convert with {converted}.float(){whole}"


def axes_hint(images: Tensor) -> str:
    """Say how to get from another number of axes to N×C×H×W.

    >>> axes_hint(torch.zeros(8, 1, 16000))[:39]
    'N×1×L looks like audio, which no image '
    """
    shape = images.shape
    if len(shape) == 3 and shape[1] in (1, 2):
        return f"N×{shape[1]}×L looks like audio, which no image classifier takes; turn it into spectrograms N×1×H×W"
    if len(shape) == 3:
        is_bytes = images.dtype == torch.uint8
        return f"add the batch axis with {as_batch('images', shape, is_bytes)}{_flip(images) if is_bytes else ''}"
    return "reshape them"


def _flip(images: Tensor) -> str:
    return f" ({BGR}: images.flip(-1) first)" if _channels_at_end(images.shape) else ""


def _channels_at_end(shape: Sequence[int]) -> bool:
    """Whether an image's channels are certainly its last axis."""
    return len(shape) >= 3 and shape[-1] in CHANNELS and shape[-3] not in CHANNELS


def _in_mapping(found: Mapping[Any, Any]) -> str:
    what = f"found a {type(found).__name__} with the keys {', '.join(map(repr, found))}"
    keys = [key for key, value in found.items() if isinstance(value, Tensor) and value.ndim == 4]
    return f"{what}; pass batch[{keys[0]!r}]" if keys else f"{what}; pass the tensor of the images alone"


def _in_sequence(found: Sequence[Any]) -> str:
    what, first = f"found a {type(found).__name__} of {len(found)} {_name(found[0])}s", found[0]
    if _is_picture(first):
        return f"found a {type(found).__name__} of {len(found)} PIL images; pass {_stacked('images')}"
    if isinstance(first, Tensor) and first.ndim == 4:
        return f"found a {type(found).__name__} that begins with a batch of images; pass batch[0]"
    if isinstance(first, Tensor):
        return f"{what}; pass {as_batch('torch.stack(images)', (0, *first.shape), first.dtype == torch.uint8)}"
    if isinstance(first, np.ndarray):
        stacked = "torch.from_numpy(numpy.stack(images))"
        flip = (
            f" ({BGR}: images = [image[..., ::-1] for image in images] first)" if _channels_at_end(first.shape) else ""
        )
        return f"{what}; pass {as_batch(stacked, (0, *first.shape), first.dtype == np.uint8)}{flip}"
    return f"{what}; try torch.as_tensor(images)"


def _stacked(images: str) -> str:
    arrays = f"numpy.stack([image.convert('RGB') for image in {images}])"
    return f"torch.from_numpy({arrays}).permute(0, 3, 1, 2).float() / 255"


def _is_picture(value: Any) -> bool:
    return any(cls.__module__.startswith("PIL.") and cls.__name__ == "Image" for cls in type(value).__mro__)


def _name(value: Any) -> str:
    return type(value).__name__
