"""Checks of input images: floats in [0, 1], N×C×H×W, finite, on the model's device."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from resitta.errors import BadImages, BadOutput, NonFiniteImages, NotExportable
from resitta.inputs import hints

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
ROUNDING = 1e-3
"""How far a pixel may leave [0, 1] at least; images of low precision may leave it by their rounding error."""
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


class Preprocessing(Protocol):
    """What has to be known of a network to judge its images."""

    mean: Tensor | None
    plain_range: tuple[float, float] | None
    """Where images in [0, 1] lie if they are wrongly taken for normalised ones."""

    @property
    def device(self) -> torch.device:
        """Where it is."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision it computes in."""

    def pixels(self, images: Tensor) -> Tensor:
        """Undo the caller's normalisation: images in [0, 1]."""

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Normalise images in [0, 1] as the caller does."""


def refuse_recording() -> None:
    """Refuse to be traced by torch.jit or exported by torch.export, on which torch.onnx builds."""
    if torch.jit.is_tracing() or exporting():  # type: ignore[attr-defined, no-untyped-call]
        raise NotExportable(UNRECORDABLE)


def is_batch(images: Any) -> bool:
    """Tell a float tensor of four axes, which need not be converted.

    >>> is_batch(torch.zeros(2, 3, 8, 8)), is_batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    (True, False)
    """
    return isinstance(images, Tensor) and images.ndim == 4 and images.dtype in FLOATS


def checked(images: Tensor, network: Preprocessing) -> tuple[Tensor, "PixelRange"]:
    """Return a batch as the network takes it, and the range of its pixels, which is still to be checked."""
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


def check_dense(images: Tensor) -> None:
    """Refuse sparse, nested and quantized tensors."""
    if images.layout != torch.strided or images.is_nested or images.is_quantized:
        raise BadImages(f"images must be an ordinary (dense) tensor, found {hints.not_dense(images)}")


def check_channels(images: Tensor, network: Preprocessing) -> None:
    """Refuse images of another number of channels than the normalisation has."""
    if network.mean is not None and network.mean.shape[1] not in (1, images.shape[1]):
        found, named = images.shape[1], network.mean.shape[1]
        hint = hints.layout_hint(images)
        raise BadImages(f"normalized= names {named} channels, the images have {found}; match them{hint}")


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
