"""Checks of input images: floats in [0, 1], N×C×H×W, finite, on the model's device.

A refusal names the expression that turns images as other libraries return them into such a batch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from resitta.errors import BadImages, BadOutput, NonFiniteImages, NotExportable

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
BYTES = "divide by 255"
NonFinite = Literal["raise", "skip"]
ROUNDING = 1e-3
"""How far a pixel may leave [0, 1] at least; images of low precision may leave it by their rounding error."""
CHANNELS = (1, 3, 4)
"""How many channels pictures have."""
BGR = "OpenCV reads BGR"
UNRECORDABLE = (
    "an adapter learns while it predicts, which no trace, script or exported program can hold; "
    "use adapter.export(), an ordinary model with what was learned"
)
exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.onnx.is_in_onnx_export)  # since torch 2.7
Predict = Callable[[Tensor], Tensor]
"""From images to logits."""


class Preprocessing(Protocol):
    """What has to be known of a network to judge its images."""

    mean: Tensor | None

    @property
    def device(self) -> torch.device:
        """Where it is."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision it computes in."""

    def pixels(self, images: Tensor) -> Tensor:
        """Undo the caller's normalisation: images in [0, 1]."""


def refuse_recording() -> None:
    """Refuse to be traced by torch.jit or exported by torch.export, on which torch.onnx builds."""
    if torch.jit.is_tracing() or exporting():  # type: ignore[attr-defined, no-untyped-call]
        raise NotExportable(UNRECORDABLE)


def checked(images: Tensor, network: Preprocessing) -> tuple[Tensor, "PixelRange"]:
    """Return a batch as the network takes it, and the range of its pixels, which is still to be checked."""
    check_form(images, network)
    images = images.clone() if images.is_inference() else images.detach()  # an inference tensor cannot enter a graph
    return images.to(network.dtype), PixelRange(images, network)


def check_form(images: Any, network: Preprocessing) -> None:
    """Refuse anything but a batch of float images for this network."""
    if not isinstance(images, Tensor):
        raise BadImages(f"images must be a torch.Tensor, {instead_of(images)}")
    if images.layout != torch.strided or images.is_nested or images.is_quantized:
        raise BadImages(f"images must be an ordinary (dense) tensor, found {_unusual(images)}")
    shape = tuple(images.shape)
    if images.ndim != 4:
        raise BadImages(f"images must have four axes N×C×H×W, found shape {shape}; {axes_hint(images)}")
    if images.dtype not in FLOATS:
        raise BadImages(f"images must be floating point in [0, 1], found {images.dtype}; {to_floats(images)}")
    if images.numel() == 0:
        raise BadImages(f"the batch is empty: shape {shape}; pass at least one image")
    _check_channels(images, network)
    if images.device != network.device:
        move = f"images.to({str(network.device)!r}) or adapter.to({str(images.device)!r})"
        raise BadImages(f"images are on {images.device}, the model is on {network.device}; call {move}")


class PixelRange:
    """The lowest and highest pixel of a batch; their copy to the host starts here and is awaited in `check`."""

    def __init__(self, images: Tensor, network: Preprocessing) -> None:
        self.images, self.network = images, network
        extremes = torch.stack(network.pixels(images).aminmax())
        self._extremes = extremes.to("cpu", non_blocking=extremes.is_cuda)
        self._arrived = torch.cuda.current_stream(extremes.device).record_event() if extremes.is_cuda else None

    def check(self, non_finite: NonFinite) -> Tensor | None:
        """Refuse values outside [0, 1]; return which images are finite, or None when all are."""
        if self._arrived is not None:
            self._arrived.synchronize()
        low, high = self._extremes.tolist()
        finite = None
        if not (math.isfinite(low) and math.isfinite(high)):
            pixels = self.network.pixels(self.images)
            finite = pixels.isfinite().flatten(1).all(dim=1)
            if non_finite == "raise":
                raise NonFiniteImages(f"{_which(finite)} NaN or Inf; drop them, or pass non_finite='skip'")
            if not finite.any():
                return finite
            low, high = torch.stack(pixels[finite].aminmax()).tolist()
        rounding = max(ROUNDING, torch.finfo(self.images.dtype).eps)
        if low < -rounding or high > 1 + rounding:
            hint = _range_hint(low, high, self.network)
            hint += layout_hint(self.images, " / 255" if hint == BYTES else "")
            raise BadImages(f"pixels must lie in [0, 1], found {low:.4g} to {high:.4g}; {hint}")
        return finite


def predict_early(images: Tensor, pixels: PixelRange, predict: Predict) -> Tensor:
    """Predict before the pixels are checked, so that a CUDA device has work while the host waits for their range."""
    try:
        return predict(images)
    except Exception:
        pixels.check("skip")  # pixels out of range are a better reason
        raise


def answer_finite(images: Tensor, finite: Tensor, predict: Predict, answer: Predict) -> Tensor:
    """Answer the finite images as a batch of their own; the others are repaired and only predicted.

    >>> images = torch.tensor([0.25, torch.nan])
    >>> answer_finite(images, images.isfinite(), lambda x: x[:, None], lambda x: -x[:, None]).flatten()
    tensor([-0.2500,  0.0000])
    """
    repaired = images[~finite].nan_to_num(nan=0.0, posinf=1.0, neginf=0.0)
    skipped = predict(repaired)
    logits = skipped.new_empty((len(images), skipped.shape[1]))
    logits[~finite] = skipped
    places = finite.nonzero().flatten()
    if len(places):
        logits.index_copy_(0, places, answer(images[finite]))  # allocates nothing: after learning nothing may fail
    return logits


def check_logits(logits: Any, images: Tensor, *, classes: int = 0) -> Tensor:
    """Return one row of float logits for each image, without a graph; refuse anything else.

    `classes`: how many the rows must have, if that is known.
    """
    if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point() or logits.shape[1] < 2:
        found = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else _name(logits)
        raise BadOutput(f"logits must be floats N×classes, found {found}; pass what the adapter's model returned")
    if len(logits) != len(images) or classes not in (0, logits.shape[1]):
        wanted = f"{len(images)}×{classes or 'classes'}"
        raise BadOutput(f"logits must be {wanted} for these images, found {len(logits)}×{logits.shape[1]}")
    if logits.device != images.device:
        raise BadOutput(f"logits are on {logits.device}, images on {images.device}; call logits.to(images.device)")
    return logits.clone() if logits.is_inference() else logits.detach()


def instead_of(found: Any) -> str:
    """Say what was found in the place of a tensor, and what to pass.

    >>> instead_of(np.zeros((2, 8, 8, 3), np.uint8))[:80]
    'found an ndarray of uint8 with shape (2, 8, 8, 3); pass torch.from_numpy(images)'
    >>> instead_of({"label": 3, "image": torch.zeros(2, 3, 8, 8)})
    "found a dict with the keys 'label', 'image'; pass batch['image']"
    """
    if isinstance(found, np.ndarray):
        batch = as_batch("torch.from_numpy(images)", found.shape, found.dtype == np.uint8)
        flip = f" ({BGR}: images[..., ::-1].copy() first)" if _channels_at_end(found.shape) else ""
        return f"found an ndarray of {found.dtype} with shape {found.shape}; pass {batch}{flip}"
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


def _unusual(images: Tensor) -> str:
    """Name the kind of a tensor that is not dense, and what makes it so."""
    if images.is_nested:
        return "a nested tensor; pass images of one size together, as torch.stack(images.unbind())"
    if images.is_quantized:
        return f"{images.dtype}; pass images.dequantize()"
    return f"a tensor of layout {images.layout}; pass images.to_dense()"


def _check_channels(images: Tensor, network: Preprocessing) -> None:
    if network.mean is not None and network.mean.shape[1] not in (1, images.shape[1]):
        found, named = images.shape[1], network.mean.shape[1]
        raise BadImages(f"normalized= names {named} channels, the images have {found}; match them{layout_hint(images)}")


def _which(finite: Tensor) -> str:
    bad = (~finite).nonzero().flatten().tolist()
    names = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return f"{len(bad)} of {len(finite)} images (index {names}) hold"


def _range_hint(low: float, high: float, network: Preprocessing) -> str:
    if network.mean is not None:
        return "check that normalized=(mean, std) is what your pipeline applies"
    if low >= 0 and high > 2:
        return BYTES
    if low > -0.5 and high < 1.5:
        return "clamp them with images.clamp(0, 1), or pass normalized=(mean, std) if your pipeline normalises"
    return "pass normalized=(mean, std) if your pipeline normalises"


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
        stacked = as_batch("torch.from_numpy(numpy.stack(images))", (0, *first.shape), first.dtype == np.uint8)
        flipped = f" ({BGR}: images = [image[..., ::-1] for image in images] first)"
        return f"{what}; pass {stacked}{flipped if _channels_at_end(first.shape) else ''}"
    return f"{what}; try torch.as_tensor(images)"


def _stacked(images: str) -> str:
    arrays = f"numpy.stack([image.convert('RGB') for image in {images}])"
    return f"torch.from_numpy({arrays}).permute(0, 3, 1, 2).float() / 255"


def _is_picture(value: Any) -> bool:
    return any(cls.__module__.startswith("PIL.") and cls.__name__ == "Image" for cls in type(value).__mro__)


def _name(value: Any) -> str:
    return type(value).__name__
