"""Colour: contrast, brightness and saturation. Images are N×3×H×W, from 0 to 255.

Brightness and saturation change one coordinate of HSV. With V = max(r, g, b) and S = (V - min(r, g, b)) / V
this needs no detour through HSV: scaling V scales all channels, scaling S scales their distances from V.
"""

import torch
from torch import Tensor

from resitta.data.corruptions.random import Draws


def contrast(x: Tensor, _: Draws, *, share: float) -> Tensor:
    """Shrink the distances from each channel's mean."""
    return x.mean((2, 3), keepdim=True).lerp(x, share)


def brightness(x: Tensor, _: Draws, *, amount: float) -> Tensor:
    """Add to the value of HSV: x · V'/V, and grey V' where the pixel was black."""
    value = x.amax(1, keepdim=True)
    brighter = (value + 255 * amount).clamp_(max=255)
    return torch.where(value > 0, x * (brighter / value), brighter)


def saturate(x: Tensor, _: Draws, *, factor: float, amount: float) -> Tensor:
    """Scale the saturation of HSV: V - (V - x) · S'/S; a grey pixel has the hue of red."""
    value, dark = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - dark) / value.clamp(min=1)
    more = (saturation * factor + amount).clamp_(max=1)
    coloured = value - (value - x) * (more / saturation)
    reddish = value * torch.cat([torch.ones_like(more), 1 - more, 1 - more], 1)
    return torch.where(saturation > 0, coloured, reddish)
