"""Weather: snow, fog and frost. Images are N×3×H×W, from 0 to 255."""

import math

import torch
from torch import Tensor

from resitta.streams.corruptions.filters import enlarge, smear
from resitta.streams.corruptions.frost import textures
from resitta.streams.corruptions.random import Draws


def snow(
    x: Tensor,
    draws: Draws,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    share: float,
) -> Tensor:
    """Whiten the scene and let flakes fall: normal noise, enlarged, cut off below, and smeared downwards."""
    height, width = x.shape[2:]
    layer = draws.normal(1, math.ceil(height / zoom), math.ceil(width / zoom), mean=mean, std=std)
    layer = enlarge(layer, zoom, height, width)
    flakes = (layer.clamp(0, 1) * 255).floor_().where(layer >= threshold, torch.zeros_like(layer))
    angle = draws.uniform(low=-135, high=-45)
    falling = smear(flakes, int(radius), sigma, angle).add_(0.5).floor_()
    grey = (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    whitened = torch.maximum(x, grey * 1.5 + 127.5)
    return whitened.lerp(x, share) + falling + falling.flip(2, 3)


def fog(x: Tensor, draws: Draws, thickness: float, decay: float) -> Tensor:
    """Add a cloud and scale the light back: (x + 255·thickness·cloud) · m/(m + thickness), m = brightest/255."""
    height, width = x.shape[2:]
    cloud = plasma(draws, 2 ** math.ceil(math.log2(max(height, width))), decay)[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True) / 255
    return (x + 255 * thickness * cloud) * (brightest / (brightest + thickness))


def plasma(draws: Draws, side: int, decay: float) -> Tensor:
    """Return clouds from 0 to 1, N×side×side, by the diamond-square algorithm on a torus.

    Each level halves the step: first the centres of the squares, then the centres of the diamonds between
    them, each the mean of its four neighbours plus a random part, which is `decay`² smaller on the next level.

    >>> cloud = plasma(Draws(torch.tensor([7])), 8, 2.0)
    >>> cloud.shape, cloud.min().item(), cloud.max().item()
    (torch.Size([1, 8, 8]), 0.0, 1.0)
    """
    corners = torch.zeros_like(draws.uniform(1, 1))
    roughness = 100.0**2
    while corners.shape[-1] < side:
        corners = _refined(corners, draws, roughness)
        roughness /= decay**2
    low, high = corners.amin((1, 2), keepdim=True), corners.amax((1, 2), keepdim=True)
    return (corners - low) / (high - low)


def _refined(corners: Tensor, draws: Draws, roughness: float) -> Tensor:
    """Double the resolution of N×s×s heights: one level of the diamond-square algorithm."""
    size = corners.shape[-1]
    noise = draws.uniform(3, size, size, low=-roughness, high=roughness)
    right, below = corners.roll(-1, 2), corners.roll(-1, 1)
    centres = (corners + right + below + right.roll(-1, 1)) / 4 + noise[:, 0]
    on_rows = (corners + right + centres + centres.roll(1, 1)) / 4 + noise[:, 1]
    on_columns = (corners + below + centres + centres.roll(1, 2)) / 4 + noise[:, 2]
    even_rows = torch.stack([corners, on_rows], -1).flatten(2)
    odd_rows = torch.stack([on_columns, centres], -1).flatten(2)
    return torch.stack([even_rows, odd_rows], 2).flatten(1, 2)


def frost(x: Tensor, draws: Draws, share: float, ice: float, scale: float) -> Tensor:
    """Lay a random crop of a random frost texture over the image: share·x + ice·texture."""
    height, width = x.shape[2:]
    pictures, sizes = textures(scale, height, width, x.device)
    which = draws.integers(len(pictures))
    top = draws.integers(sizes[which, 0] - height)
    left = draws.integers(sizes[which, 1] - width)
    crops = pictures.unfold(2, height, 1).unfold(3, width, 1)[which, :, top, left]
    return x * share + crops * ice
