"""The filters that several corruptions share, for batches N×C×H×W on any device."""

import math
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Border = Literal["nearest", "reflect"]


def smooth(x: Tensor, sigma: float, *, truncate: float = 4.0, border: Border = "nearest") -> Tensor:
    """Blur with a Gaussian cut off at `truncate` sigmas: a matrix times the image, once for each direction.

    Beyond the border comes the nearest pixel again, or the mirrored image (edge pixel twice).
    """
    for side in x.shape[-2:]:
        blocks = _gaussian_blocks(side, sigma, truncate, border, x.device)
        x = torch.cat([weights @ x[..., low:high, :] for low, high, weights in blocks], -2).mT
    return x


@lru_cache(maxsize=64)
def _gaussian_blocks(
    side: int, sigma: float, truncate: float, border: Border, device: torch.device
) -> list[tuple[int, int, Tensor]]:
    """Return the Gaussian's matrix, 32 rows at a time, each block without the zeros left and right of it."""
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-(offsets.double() ** 2) / max(2 * sigma**2, 1e-9))
    taps = torch.arange(side)[:, None] + offsets
    if border == "nearest":
        source = taps.clamp(0, side - 1)
    else:
        source = torch.minimum(taps % (2 * side), (-taps - 1) % (2 * side))
    shares = (weights / weights.sum()).expand(source.shape)
    matrix = torch.zeros(side, side, dtype=torch.float64).scatter_add_(1, source, shares).float()
    blocks = []
    for start in range(0, side, 32):
        used = source[start : start + 32]
        low, high = int(used.min()), int(used.max()) + 1
        blocks.append((low, high, matrix[start : start + 32, low:high].to(device)))
    return blocks


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Filter every channel with one odd, symmetric kernel, by the Fourier transform.

    The border is mirrored without repeating the edge pixel.
    """
    height, width = x.shape[-2:]
    pad = kernel.shape[-1] // 2
    padded = F.pad(x, (pad, pad, pad, pad), mode="reflect")
    size = [-(-side // 16) * 16 for side in padded.shape[-2:]]  # transforms of round sizes are faster
    spectrum = torch.fft.rfft2(padded, s=size) * torch.fft.rfft2(kernel, s=size)
    filtered: Tensor = torch.fft.irfft2(spectrum, s=size)
    return filtered[..., 2 * pad : 2 * pad + height, 2 * pad : 2 * pad + width]


def smear(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blur along a line that starts at each pixel, at one angle per image (degrees): motion blur.

    Tap i = 0 … 2·radius is the pixel i steps along the line, rounded to the grid, with weight
    exp(-i²/2σ²); beyond the border comes the nearest pixel.
    """
    height, width = x.shape[2:]
    reach = 2 * radius
    steps = torch.arange(reach + 1, device=x.device)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    radians = torch.deg2rad(angle)[:, None]
    down = torch.ceil(steps * torch.sin(radians) - 0.5).long()
    right = torch.ceil(steps * torch.cos(radians) - 0.5).long()
    # In padded images laid out flat, a shift is one offset per image, and a tap copies whole rows.
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    place = torch.arange(padded.numel(), device=x.device).view(padded.shape)
    starts = place[:, :, reach : reach + height, reach]
    shifts = (down * padded.shape[3] + right)[:, :, None, None]
    rows = padded.flatten().unfold(0, width, 1)
    blurred, tap = torch.zeros_like(x), torch.empty_like(x)
    for step, weight in enumerate((weights / weights.sum()).tolist()):
        torch.index_select(rows, 0, (starts + shifts[:, step]).flatten(), out=tap.view(-1, width))
        blurred.add_(tap, alpha=weight)
    return blurred


def zoom_in(x: Tensor, factor: float) -> Tensor:
    """Enlarge the centre so that the image keeps its size.

    >>> zoom_in(torch.arange(16.0).view(1, 1, 4, 4), 2.0)[0, 0, 0].round().tolist()
    [5.0, 5.0, 6.0, 6.0]
    """
    height, width = x.shape[-2:]
    rows, columns = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - rows) // 2, (width - columns) // 2
    return enlarge(x[..., top : top + rows, left : left + columns], factor, height, width)


def enlarge(x: Tensor, factor: float, height: int, width: int) -> Tensor:
    """Enlarge bilinearly, corner pixels onto corner pixels, and keep the centre of height×width."""
    rows, columns = (round(side * factor) for side in x.shape[-2:])
    large = F.interpolate(x, (rows, columns), mode="bilinear", align_corners=True)
    top, left = (rows - height) // 2, (columns - width) // 2
    return large[..., top : top + height, left : left + width]
