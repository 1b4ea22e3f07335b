"""Sentences for what is refused: what was found, and the expression that turns it into a batch of images."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

BYTES = "divide by 255"
CHANNELS = (1, 3, 4)
"""How many channels pictures have."""


def instead_of(found: Any) -> str:
    """Say what was found in the place of images, and what to pass.

    >>> import torch
    >>> instead_of({"label": 3, "image": torch.zeros(2, 3, 8, 8)})
    "found a dict with the keys 'label', 'image'; pass batch['image']"
    """
    if isinstance(found, Mapping):
        return _in_mapping(found)
    if isinstance(found, list | tuple) and len(found):
        return _in_sequence(found)
    return f"found {type(found).__name__}; pass a tensor, an array, a PIL image or a list of them"


def unclear_layout(shape: Sequence[int], layouts: Sequence[str]) -> str:
    """Say that a shape may be read in several ways, or in none, and which option decides.

    >>> unclear_layout((3, 10, 3), ["CHW", "HWC"])[:60]
    'shape (3, 10, 3), which may be C×H×W or H×W×C; decide with r'
    """
    if len(layouts) > 1:
        readings = " or ".join("×".join(layout) for layout in layouts)
        decide = f"decide with resitta.images(images, layout={layouts[-1]!r}, to=adapter), or layout={layouts[0]!r}"
        return f"shape {tuple(shape)}, which may be {readings}; {decide}"
    if len(shape) == 3 and shape[1] in (1, 2):
        audio = f"N×{shape[1]}×L looks like audio, which no image classifier takes"
        return f"shape {tuple(shape)}; {audio}; turn it into spectrograms N×1×H×W"
    usual = {2: "HW", 3: "CHW", 4: "NCHW"}.get(len(shape))
    if usual is None:
        return f"shape {tuple(shape)}; reshape them"
    named = f"name the axes with resitta.images(images, layout={usual!r}, to=adapter)"
    reason = "which may be rows of features" if usual == "HW" else "where no axis is one of 1, 3 or 4 channels"
    return f"shape {tuple(shape)}, {reason}; if they are {'×'.join(usual)}, {named}"


def unfit_type(images: Tensor | NDArray[Any]) -> str:
    """Say that no pixels are of this type, and what makes them so.

    >>> import torch
    >>> unfit_type(torch.zeros(2, 3, 8, 8, dtype=torch.int64))
    'found torch.int64; convert with images / highest, where highest is the value of white'
    """
    is_tensor, kind = isinstance(images, Tensor), str(images.dtype)
    if "complex" in kind:
        return f"found {kind}; take the magnitude, abs(images), if that is an image"
    if "float" in kind:
        return f"found {kind}; convert with {'images.float()' if is_tensor else 'images.astype(numpy.float32)'}"
    if "int" in kind:
        return f"found {kind}; convert with images / highest, where highest is the value of white"
    return f"found an array of {kind}; pass numbers, or a list of images"


def not_dense(images: Tensor) -> str:
    """Name the kind of a tensor that is not dense, and what makes it so."""
    if images.is_nested:
        return "a nested tensor; pass a list of images, images.unbind()"
    if images.is_quantized:
        return f"{images.dtype}; pass images.dequantize()"
    return f"a tensor of layout {images.layout}; pass images.to_dense()"


def layout_hint(images: Tensor, then: str = "") -> str:
    """Name the axes of images whose channels come last, for the end of a sentence; nothing for others.

    >>> import torch
    >>> layout_hint(torch.zeros(2, 32, 32, 3))
    '; they look like N×H×W×C: pass images.permute(0, 3, 1, 2)'
    """
    if not looks_channels_last(images.shape):
        return ""
    return f"; they look like N×H×W×C: pass images.permute(0, 3, 1, 2){then}"


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Whether the channels of a batch are probably its last axis."""
    return len(shape) == 4 and shape[-1] in CHANNELS and shape[-3] not in CHANNELS


def range_hint(low: float, high: float, *, is_normalized: bool) -> str:
    """Say what brings pixels of a range into [0, 1]."""
    if is_normalized:
        return "check that normalized=(mean, std) is what your pipeline applies"
    if low >= 0 and high > 2:
        return BYTES
    if low > -0.5 and high < 1.5:
        return "clamp them with images.clip(0, 1), or pass normalized=(mean, std) if your pipeline normalises"
    return "pass normalized=(mean, std) if your pipeline normalises"


def _in_mapping(found: Mapping[Any, Any]) -> str:
    what = f"found a {type(found).__name__} with the keys {', '.join(map(repr, found))}"
    keys = [key for key, value in found.items() if getattr(value, "ndim", 0) == 4]
    return f"{what}; pass batch[{keys[0]!r}]" if keys else f"{what}; pass the images alone"


def _in_sequence(found: Sequence[Any]) -> str:
    what, first = f"found a {type(found).__name__}", found[0]
    if getattr(first, "ndim", 0) == 4:
        return f"{what} that begins with a batch of images; pass batch[0]"
    return f"{what} that holds {type(first).__name__}; pass a list of images, or numpy.asarray(images)"
