"""Checks of input images: floats in [0, 1], N×C×H×W, finite, on the model's device. Other forms are converted first."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from resitta.errors import BadImages, BadOutput, NonFiniteImages, NotExportable
from resitta.inputs import hints
from resitta.inputs.convert import ROUNDING, Preprocessing, check_channels, for_network
from resitta.inputs.sources import FLOATS, check_dense

NonFinite = Literal["raise", "skip"]
UNRECORDABLE = (
    "an adapter learns while it predicts, which no trace, script or exported program can hold; "
    "use adapter.export(), an ordinary model with what was learned"
)
PLAIN = (
    "floats between 0 and 1 came to an adapter with normalized=(mean, std), which takes floats to be normalised; "
    "if they are not, pass resitta.images(..., to=adapter), or leave out normalized="
)
exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.onnx.is_in_onnx_export)  # since torch 2.7
Predict = Callable[[Tensor], Tensor]
"""From images to logits."""


def refuse_recording() -> None:
    """Refuse to be traced by torch.jit or exported by torch.export, on which torch.onnx builds."""
    if torch.jit.is_tracing() or exporting():  # type: ignore[attr-defined, no-untyped-call]
        raise NotExportable(UNRECORDABLE)


def checked(images: Any, network: Preprocessing) -> tuple[Tensor, "PixelRange"]:
    """Return a batch as the network takes it, and the range of its pixels, which is still to be checked.

    Images of other forms are converted: see `resitta.images`.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or images.dtype not in FLOATS:
        images = for_network(images, network)
    check_form(images, network)
    images = images.clone() if images.is_inference() else images.detach()  # an inference tensor cannot enter a graph
    return images.to(network.dtype), PixelRange(images, network)


def check_form(images: Tensor, network: Preprocessing) -> None:
    """Refuse what is no batch of images for this network, among float tensors of four axes."""
    check_dense(images)
    if images.numel() == 0:
        raise BadImages(f"the batch is empty: shape {tuple(images.shape)}; pass at least one image")
    check_channels(images, network)
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
            hint = hints.range_hint(low, high, is_normalized=self.network.mean is not None)
            hint += hints.layout_hint(self.images, " / 255" if hint == hints.BYTES else "")
            raise BadImages(f"pixels must lie in [0, 1], found {low:.4g} to {high:.4g}; {hint}")
        plain = self.network.plain_range
        if plain is not None and plain[0] <= low and high <= plain[1]:
            warnings.warn(PLAIN, stacklevel=2)
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
        is_tensor = isinstance(logits, Tensor)
        found = f"{logits.dtype} of shape {tuple(logits.shape)}" if is_tensor else type(logits).__name__
        raise BadOutput(f"logits must be floats N×classes, found {found}; pass what the adapter's model returned")
    if len(logits) != len(images) or classes not in (0, logits.shape[1]):
        wanted = f"{len(images)}×{classes or 'classes'}"
        raise BadOutput(f"logits must be {wanted} for these images, found {len(logits)}×{logits.shape[1]}")
    if logits.device != images.device:
        raise BadOutput(f"logits are on {logits.device}, images on {images.device}; call logits.to(images.device)")
    return logits.clone() if logits.is_inference() else logits.detach()


def _which(finite: Tensor) -> str:
    bad = (~finite).nonzero().flatten().tolist()
    names = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return f"{len(bad)} of {len(finite)} images (index {names}) hold"
