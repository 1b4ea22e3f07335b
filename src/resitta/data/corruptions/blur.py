"""Blur: every pixel mixes with its neighbours. Images are N×3×H×W, from 0 to 255."""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.data.corruptions.filters import convolve, smear, smooth, zoom_in
from resitta.data.corruptions.random import Draws


def gaussian_blur(x: Tensor, _: Draws, *, sigma: float) -> Tensor:
    """Blur with a Gaussian."""
    return smooth(x, sigma)


def defocus_blur(x: Tensor, _: Draws, *, radius: float, edge: float) -> Tensor:
    """Blur with a disc, the image of a point out of focus."""
    return convolve(x, disc(radius, edge).to(x.device))


@lru_cache(maxsize=15)
def disc(radius: float, edge: float) -> Tensor:
    """Return a disc whose edge is softened by a Gaussian of 3×3 pixels, 5×5 beyond radius 8.

    As in the public sets, discs of radius 8 and 10 fill their array, and its mirrored rim adds 1 % of light.
    """
    half, wide = (8, 1) if radius <= 8 else (int(radius), 2)
    axis = torch.arange(-half, half + 1)
    hard = (axis[:, None] ** 2 + axis**2 <= radius**2).float()
    taps = torch.exp(-(torch.arange(-wide, wide + 1) ** 2) / (2 * edge**2)).float()
    soft = torch.outer(taps, taps) / taps.sum() ** 2
    padded = F.pad((hard / hard.sum())[None, None], (wide, wide, wide, wide), mode="reflect")
    kernel = F.conv2d(padded, soft[None, None])[0, 0]
    empty = max(half - int(radius) - wide, 0)
    return kernel[empty : 2 * half + 1 - empty, empty : 2 * half + 1 - empty]


def motion_blur(x: Tensor, draws: Draws, *, radius: float, sigma: float) -> Tensor:
    """Blur along a line at up to 45° to the horizontal, rounded to whole grey levels."""
    angle = draws.uniform(low=-45, high=45)
    return smear(x, int(radius), sigma, angle).add_(0.5).floor_()


def zoom_blur(x: Tensor, _: Draws, *, stop: float, step: float) -> Tensor:
    """Average the image with enlarged versions of itself."""
    factors = np.arange(1, stop, step)
    x = x.contiguous(memory_format=torch.channels_last)  # this layout enlarges twice as fast
    total = 2 * x  # the image itself and its enlargement by 1
    for factor in factors[1:].tolist():
        total += zoom_in(x, factor)
    return total / (len(factors) + 1)


def glass_blur(x: Tensor, draws: Draws, *, sigma: float, reach: float, rounds: float) -> Tensor:
    """Look through frosted glass: blur, replace pixels by near ones, blur again."""
    x = smooth(x, sigma).floor_()
    for _ in range(int(rounds)):
        x = scatter_pixels(x, draws, int(reach))
    return smooth(x, sigma)


def scatter_pixels(x: Tensor, draws: Draws, reach: int) -> Tensor:
    """Replace pixels one after the other, last first, by a pixel at most `reach` steps away.

    (The scripts of the public sets set out to swap the two, but their views of one array overwrite the first.)
    A pixel taken from further on has been replaced before, so it passes on what *it* took: a chain, which ends
    at a pixel not yet replaced. All chains are followed at once, in steps of 1, 2, 4, … links.
    """
    n, channels, height, width = x.shape
    inner = torch.zeros(height, width, dtype=torch.bool, device=x.device)
    inner[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    down, right = draws.uniform(2, height, width, low=-reach, high=reach).floor_().unbind(1)
    count = n * height * width
    here = torch.arange(count, device=x.device, dtype=torch.int32).view(n, height, width)
    source = torch.where(inner, here + (down * width + right).int(), here)
    # The end of a chain is marked by adding `count`.
    link = torch.where(source > here, source, source + count).flatten()
    waiting = (link < count).nonzero()[:, 0]
    while len(waiting):
        further = link.index_select(0, link.index_select(0, waiting))
        link.index_copy_(0, waiting, further)
        waiting = waiting[further < count]
    pixels = x.movedim(1, -1).reshape(count, channels)
    return pixels.index_select(0, link - count).view(n, height, width, channels).movedim(-1, 1)
