"""What may enter an adapter: float images in [0, 1], N×C×H×W, finite, on the model's device."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from resitta.errors import BadImages, NonFiniteImages
from resitta.hints import axes_hint, instead_of, layout_hint, to_floats
from resitta.runtime.weight_handoff import mark
from resitta.training.network import Network

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
BYTES = "divide by 255"
NonFinite = Literal["raise", "skip"]
ROUNDING = 1e-3
"""How far a pixel may leave [0, 1] at least; images of low precision may leave it by what they round off."""


def check_form(images: Any, network: Network) -> None:
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


class Values:
    """The pixels of a batch. Their lowest and highest are on the way to the host as soon as there is one of these."""

    def __init__(self, images: Tensor, network: Network) -> None:
        self.images, self.network = images, network
        extremes = torch.stack(network.pixels(images).aminmax())
        self._extremes = extremes.to("cpu", non_blocking=extremes.is_cuda)
        self._arrived = mark(extremes)

    def check(self, non_finite: NonFinite) -> Tensor | None:
        """Wait for them; refuse values outside [0, 1]; return which images are finite, or None when all are."""
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


def _unusual(images: Tensor) -> str:
    """Name the kind of a tensor that is not dense, and what makes it so."""
    if images.is_nested:
        return "a nested tensor; pass images of one size together, as torch.stack(images.unbind())"
    if images.is_quantized:
        return f"{images.dtype}; pass images.dequantize()"
    return f"a tensor of layout {images.layout}; pass images.to_dense()"


def _check_channels(images: Tensor, network: Network) -> None:
    if network.mean is not None and network.mean.shape[1] not in (1, images.shape[1]):
        found, wanted = images.shape[1], network.mean.shape[1]
        raise BadImages(
            f"normalized= names {wanted} channels, the images have {found}; make them agree{layout_hint(images)}"
        )


def _which(finite: Tensor) -> str:
    bad = (~finite).nonzero().flatten().tolist()
    names = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return f"{len(bad)} of {len(finite)} images (index {names}) hold"


def _range_hint(low: float, high: float, network: Network) -> str:
    if network.mean is not None:
        return "check that normalized=(mean, std) is what your pipeline applies"
    if low >= 0 and high > 2:
        return BYTES
    if low > -0.5 and high < 1.5:
        return "clamp them with images.clamp(0, 1), or pass normalized=(mean, std) if your pipeline normalises"
    return "pass normalized=(mean, std) if your pipeline normalises"
