"""JPEG: what a compressor and decompressor of the usual kind (IJG, baseline, 4:2:0) make of an image.

Only the steps that lose something are done, with their roundings; the lossless coding is left out.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.data.corruptions.random import Draws

# Tables K.1 and K.2 of the JPEG standard, row by row.
_LUMINANCE = """
    16 11 10 16  24  40  51  61    12 12 14 19  26  58  60  55
    14 13 16 24  40  57  69  56    14 17 22 29  51  87  80  62
    18 22 37 56  68 109 103  77    24 35 55 64  81 104 113  92
    49 64 78 87 103 121 120 101    72 92 95 98 112 100 103  99
"""
_CHROMINANCE = """
    17 18 24 47 99 99 99 99    18 21 26 66 99 99 99 99
    24 26 56 99 99 99 99 99    47 66 99 99 99 99 99 99
    99 99 99 99 99 99 99 99    99 99 99 99 99 99 99 99
    99 99 99 99 99 99 99 99    99 99 99 99 99 99 99 99
"""


def jpeg_compression(x: Tensor, _: Draws, *, quality: float) -> Tensor:
    """Compress and decompress images N×3×H×W from 0 to 255 at a quality from 1 to 100."""
    height, width = x.shape[2:]
    padded = F.pad(x, (0, -width % 16, 0, -height % 16), mode="replicate")
    luma, chroma = _to_ycc(padded)
    luma = _code(luma, _LUMINANCE, quality)
    chroma = _double(_code(_halve(chroma), _CHROMINANCE, quality))
    return _to_rgb(luma, chroma)[:, :, :height, :width]


def _to_ycc(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return luma, N×H×W, and the two parts of the chroma one after the other, 2N×H×W."""
    r, g, b = x.unbind(1)
    luma = _round(0.299 * r + 0.587 * g + 0.114 * b)
    blue = 128 - 0.168735892 * r - 0.331264108 * g + 0.5 * b
    red = 128 + 0.5 * r - 0.418687589 * g - 0.081312411 * b
    return luma, _round(torch.cat([blue, red]))


def _to_rgb(luma: Tensor, chroma: Tensor) -> Tensor:
    blue, red = (chroma - 128).chunk(2)
    r = luma + 1.402 * red
    g = luma - 0.344136286 * blue - 0.714136286 * red
    b = luma + 1.772 * blue
    return _round(torch.stack([r, g, b], 1)).clamp_(0, 255)


def _halve(x: Tensor) -> Tensor:
    """Average 2×2 pixels; halves go up and down in turn, so that the mean stays."""
    pairs = x[:, ::2] + x[:, 1::2]
    total = pairs[..., ::2] + pairs[..., 1::2]
    turn = torch.arange(total.shape[-1], device=x.device) % 2 + 1
    return total.add_(turn).div_(4).floor_()


def _double(x: Tensor) -> Tensor:
    """Enlarge twofold with weights 3/4 for the nearer pixel and 1/4 for the farther, in both directions."""
    padded = F.pad(x[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    near, above, below = 3 * padded[:, 1:-1], padded[:, :-2], padded[:, 2:]
    tall = torch.stack([near + above, near + below], 2).flatten(1, 2)
    near, left, right = 3 * tall[..., 1:-1], tall[..., :-2], tall[..., 2:]
    wide = torch.stack([near + left + 8, near + right + 7], 3).flatten(2)
    return (wide / 16).floor_()


def _code(x: Tensor, table: str, quality: float) -> Tensor:
    """Transform blocks of 8×8 to frequencies, round these to multiples of the table, and transform back."""
    n, height, width = x.shape
    blocks = x.view(n, height // 8, 8, width // 8, 8).transpose(2, 3).reshape(-1, 64) - 128
    steps, cosines = _steps(table, quality).to(x.device), _cosines().to(x.device)
    eighths = _round(blocks @ (8 * cosines.T))  # libjpeg keeps three binary digits
    kept = _round(eighths.abs() / (8 * steps)).mul_(steps).copysign_(eighths)
    pixels = _round(kept @ cosines + 128).clamp_(0, 255)
    return pixels.view(n, height // 8, width // 8, 8, 8).transpose(2, 3).reshape(n, height, width)


def _steps(table: str, quality: float) -> Tensor:
    """Scale a standard table to a quality, as the Independent JPEG Group does."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = torch.tensor([float(step) for step in table.split()])
    return ((steps * percent + 50) / 100).floor_().clamp_(1, 255)


def _cosines() -> Tensor:
    """Return the 64×64 matrix of the two-dimensional cosine transform of an 8×8 block."""
    k = torch.arange(8.0)
    one = torch.cos(k[:, None] * (2 * k + 1) * (math.pi / 16)) / 2
    one[0] /= math.sqrt(2)
    return torch.kron(one, one)


def _round(x: Tensor) -> Tensor:
    """Round halves up, in place."""
    return x.add_(0.5).floor_()
