"""Turn images of the forms that cameras and other libraries return into a batch: floats N×C×H×W.

They are copied to the device as they are, 8-bit images as bytes, and converted and resized there.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.errors import BadImages, BadSetting
from resitta.inputs import hints
from resitta.inputs.checks import FLOATS, ROUNDING, Preprocessing, check_channels, check_dense
from resitta.inputs.sources import LAYOUTS, WHITE, Layout, read

Size = int | tuple[int, int] | None
Resize = Literal["crop", "stretch"]
RGB_OF_BGR = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}
"""Where red, green, blue and what else there is are in OpenCV's images, by the number of channels."""


class Adapted(Protocol):
    """An adapter: its source says where images go, and how they are normalised."""

    @property
    def source(self) -> Preprocessing:
        """The caller's network."""


def images(
    source: Any,
    *,
    size: Size = None,
    resize: Resize = "crop",
    bgr: bool = False,
    layout: Layout | None = None,
    to: Adapted | torch.device | str | None = None,
) -> Tensor:
    """Return a batch of images as floats N×C×H×W, whatever library they come from.

    Images of 8 bits are divided by 255 (of 16 bits by 65535; True is white), in float32. Floats must lie in [0, 1] and
    keep their precision; a float tensor N×C×H×W is returned as it is. One image becomes a batch of one.

    Args:
        source: a tensor or NumPy array, N×C×H×W, N×H×W×C, C×H×W, H×W×C or H×W (grey, not of floats); a PIL image (grey
            ones keep one channel, all others become RGB); or a list of single images.
        size: resize to this (height, width), or to a square of this side. Images of several sizes need it.
        resize: "crop" cuts out the largest central part of the aspect ratio of `size`; "stretch" takes the whole image.
            Both then scale (bilinear with antialiasing, on floats). Images of the right size are unchanged.
        bgr: the colours are in OpenCV's order; turn them into RGB.
        layout: the axes of an array, such as "HWC", where its shape does not say which are the channels.
        to: an adapter or a device, where images are converted. For an adapter with `normalized=`, images that are not
            floats are normalised; floats are taken to be so already.

    Raises:
        BadImages: the source is no batch of images; the message names the expression that makes it one.

    >>> import numpy as np
    >>> frame = np.zeros((720, 1280, 3), np.uint8)  # as cv2.VideoCapture.read() returns it
    >>> images(frame, bgr=True, size=224).shape
    torch.Size([1, 3, 224, 224])
    """
    reading = Reading(size=size, resize=resize, bgr=bgr, layout=layout)
    network: Preprocessing | None = getattr(to, "source", None)
    return reading(source, _device(to)) if network is None else for_network(source, network, reading)


def for_network(source: Any, network: Preprocessing, reading: "Reading | None" = None) -> Tensor:
    """Return a batch on the network's device; images that are not floats are normalised as the network's are."""
    return (reading or Reading())(source, network.device, network)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How images are read and resized: the options of `images`, which documents them.

    >>> import numpy as np
    >>> Reading(size=8)(np.zeros((10, 12, 3), np.uint8)).shape
    torch.Size([1, 3, 8, 8])
    """

    size: Size = None
    resize: Resize = "crop"
    bgr: bool = False
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.resize not in get_args(Resize):
            raise BadSetting(f"resize must be 'crop' or 'stretch', found {self.resize!r}")
        if self.layout is not None and self.layout not in LAYOUTS:
            raise BadSetting(f"layout must be one of {', '.join(map(repr, LAYOUTS))}, found {self.layout!r}")
        if not isinstance(self.bgr, bool):
            raise BadSetting(f"bgr must be True or False, found {self.bgr!r}")
        _ = self.target

    @property
    def target(self) -> tuple[int, int] | None:
        """The height and width to resize to."""
        sides = (self.size, self.size) if isinstance(self.size, int) else self.size
        if sides is None:
            return None
        if not isinstance(sides, tuple) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
            raise BadSetting(f"size must be a side or (height, width), in whole pixels, found {self.size!r}")
        return sides

    def __call__(self, source: Any, device: torch.device | None = None, network: Preprocessing | None = None) -> Tensor:
        """Return all images as one batch. Those of one size and type are copied to the device in one piece.

        For a network, floats are left as they are; for none, they must be pixels.
        """
        if isinstance(source, Tensor) and self._leaves(source):
            if network is None:
                _check_range(source)
            return source if device is None else source.to(device)
        parts = [self._cropped(images) for images in read(source, self.layout)]
        self._check_alike(parts)
        if len(parts) > 1 and len({(part.shape, part.dtype, part.device) for part in parts}) == 1:
            parts = [torch.cat(parts)]
        place = device or parts[0].device
        batches = [self._converted(part.to(place), network) for part in parts]
        return batches[0] if len(batches) == 1 else torch.cat(batches)

    def _leaves(self, source: Tensor) -> bool:
        """Whether a tensor is a batch of floats already, with nothing to be done to it."""
        if source.ndim != 4 or source.dtype not in FLOATS or not source.numel():
            return False
        check_dense(source)
        is_nchw = self.layout == "NCHW" or (self.layout is None and not hints.looks_channels_last(source.shape))
        return is_nchw and self.size is None and not self.bgr

    def _cropped(self, images: Tensor) -> Tensor:
        """View the largest central part that has the aspect ratio of `size`."""
        if self.target is None or self.resize == "stretch":
            return images
        (height, width), (wanted_height, wanted_width) = images.shape[2:], self.target
        scale = min(height / wanted_height, width / wanted_width)
        kept = max(1, round(wanted_height * scale)), max(1, round(wanted_width * scale))
        top, left = (height - kept[0]) // 2, (width - kept[1]) // 2
        return images[:, :, top : top + kept[0], left : left + kept[1]]

    def _check_alike(self, parts: list[Tensor]) -> None:
        """Refuse a list that makes no batch."""
        channels = sorted({part.shape[1] for part in parts})
        if len(channels) > 1:
            advice = "convert them alike, PIL images with image.convert('RGB')"
            raise BadImages(f"images of a batch must have as many channels, found {channels}; {advice}")
        sizes = sorted({tuple(part.shape[2:]) for part in parts})
        if self.size is None and len(sizes) > 1:
            found = ", ".join(f"{height}×{width}" for height, width in sizes[:3]) + (", ..." if len(sizes) > 3 else "")
            advice = "resize them with resitta.images(images, size=(height, width), to=adapter)"
            raise BadImages(f"images of a batch must have one size, found {found}; {advice}")

    def _converted(self, images: Tensor, network: Preprocessing | None) -> Tensor:
        """Return floats in RGB and of the right size, normalised for the network unless they were floats before."""
        white = WHITE.get(images.dtype)
        images = images.contiguous().flatten().view(images.shape)  # the usual strides also for axes of length 1
        floats = images if white is None else images.float() / white
        if network is None and white is None:
            _check_range(floats)
        if self.bgr:
            floats = _rgb(floats)
        if self.target is not None and floats.shape[2:] != self.target:
            exact = floats.to(torch.promote_types(floats.dtype, torch.float32))  # lower precisions are not interpolated
            floats = F.interpolate(exact, self.target, mode="bilinear", antialias=True).to(floats.dtype)
        if network is None:
            return floats
        check_channels(floats, network)
        return floats if white is None else network.from_pixels(floats)


def _rgb(images: Tensor) -> Tensor:
    channels = images.shape[1]
    if channels not in RGB_OF_BGR:
        raise BadImages(f"bgr=True needs images of 1, 3 or 4 channels, found {channels}; leave it out")
    return images[:, RGB_OF_BGR[channels]]


def _device(to: Any) -> torch.device | None:
    if to is None or isinstance(to, torch.device):
        return to
    try:
        return torch.device(to)
    except (RuntimeError, TypeError) as error:
        raise BadSetting(f"to must be an adapter or a device such as 'cuda:0', found {to!r}") from error


def _check_range(images: Tensor) -> None:
    """Refuse pixels outside [0, 1]; those that are NaN or Inf are left to the adapter's `non_finite`."""
    low, high = torch.stack(images.aminmax()).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = torch.stack(images.nan_to_num(nan=0.5, posinf=0.5, neginf=0.5).aminmax()).tolist()
    rounding = max(ROUNDING, torch.finfo(images.dtype).eps)
    if low < -rounding or high > 1 + rounding:
        hint = hints.range_hint(low, high, is_normalized=False)
        raise BadImages(f"pixels must lie in [0, 1], found {low:.4g} to {high:.4g}; {hint}")
