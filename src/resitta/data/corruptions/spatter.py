"""Spatter: drops of water or mud on the lens. Images are N×3×H×W, from 0 to 255."""

import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.random import Draws

_WATER = (175.0, 238.0, 238.0)
_MUD = (63.0, 42.0, 20.0)
_EMBOSS = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
_FAR = 20.0


def spatter(
    x: Tensor, draws: Draws, *, mean: float, std: float, sigma: float, threshold: float, strength: float, mud: float
) -> Tensor:
    """Lay smoothed noise above a threshold on the image: as mud that covers, or as water that shines."""
    layer = smooth(draws.normal(1, *x.shape[2:], mean=mean, std=std), sigma)
    if mud:
        cover = smooth((layer > threshold).float(), strength)
        cover = cover * (cover >= 0.8)
        return x.lerp(_colour(_MUD, x), cover)
    water = (layer * (layer >= threshold)).mul_(255).clamp_(0, 255).floor_()
    shine = water * _relief(water)
    peak = shine.amax((2, 3), keepdim=True).clamp(min=1)
    return x + _colour(_WATER, x) * (shine / peak * strength)


def _colour(rgb: tuple[float, float, float], like: Tensor) -> Tensor:
    return like.new_tensor(rgb).view(3, 1, 1)


def _relief(water: Tensor) -> Tensor:
    """Light the drops from one side: emboss the distance from their outlines."""
    depth = chamfer_distance(canny(water, low=50, high=150))
    depth = equalise(_box(depth).floor_())
    emboss = water.new_tensor(_EMBOSS)[None, None]
    lit = F.conv2d(_mirror(depth), emboss).clamp_(0, 255)
    return (_box(lit) + 0.5).floor_()


def _mirror(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="reflect")


def _box(x: Tensor) -> Tensor:
    return F.avg_pool2d(_mirror(x), 3, stride=1)


def chamfer_distance(marked: Tensor) -> Tensor:
    """Return how far each pixel is from the nearest marked one, at most 20: N×1×H×W.

    A path may go straight (1), diagonally (1.4) or like a knight (2.1969): the 5×5 mask of Borgefors (1986).
    Paths grow by one step at a time until none gets shorter.
    """
    height, width = marked.shape[2:]
    lengths = {1: 1.0, 2: 1.4, 5: 2.1969}
    near = [(y, x, lengths.get(y * y + x * x)) for y in range(-2, 3) for x in range(-2, 3)]
    steps = [(y + 2, x + 2, length) for y, x, length in near if length]
    distance = _FAR * (~marked).float()
    while True:
        padded = F.pad(distance, (2, 2, 2, 2), value=_FAR)
        shorter = distance
        for y, x, length in steps:
            shorter = torch.minimum(shorter, padded[:, :, y : y + height, x : x + width] + length)
        if torch.equal(shorter, distance):
            return distance
        distance = shorter


def equalise(x: Tensor) -> Tensor:
    """Histogram equalisation of each image."""
    levels = x.flatten(1).long()
    counts = torch.zeros(len(x), 256, device=x.device).scatter_add_(1, levels, torch.ones_like(x).flatten(1))
    below = counts.cumsum(1)
    lowest = counts.gather(1, levels.amin(1, keepdim=True))
    spread = ((below - lowest) * 255 / (levels.shape[1] - lowest).clamp(min=1)).round_().clamp_(min=0)
    return spread.gather(1, levels).view_as(x)


_ACROSS = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
_TAN_22 = 0.41421356  # tan 22.5°; tan 67.5° is 2 more


def canny(x: Tensor, *, low: float, high: float) -> Tensor:
    """Canny edges of N×1×H×W images from 0 to 255.

    Ridges of the Sobel gradient |dx| + |dy| above `low` that are connected to a pixel above `high` (hysteresis).
    """
    across = x.new_tensor(_ACROSS)
    sobel = torch.stack([across, across.T])[:, None]
    gradient = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), sobel)
    strength = gradient.abs().sum(1, keepdim=True)
    ridge = _is_ridge(strength, gradient[:, :1], gradient[:, 1:])
    weak = ridge & (strength > low)
    return _grow(ridge & (strength > high), weak)


def _is_ridge(strength: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Non-maximum suppression: where the strength is greatest along the gradient, rounded to 45°.

    Of two equal neighbours in a row or column, the first counts.
    """
    height, width = strength.shape[2:]
    padded = F.pad(strength, (1, 1, 1, 1))

    def at(down: int, right: int) -> Tensor:
        return padded[:, :, 1 + down : 1 + down + height, 1 + right : 1 + right + width]

    steep, flat = dy.abs() > (2 + _TAN_22) * dx.abs(), dy.abs() < _TAN_22 * dx.abs()
    falling = (dx < 0) == (dy < 0)
    in_row = (strength > at(0, -1)) & (strength >= at(0, 1))
    in_column = (strength > at(-1, 0)) & (strength >= at(1, 0))
    down_right = (strength > at(-1, -1)) & (strength > at(1, 1))
    down_left = (strength > at(-1, 1)) & (strength > at(1, -1))
    diagonal = torch.where(falling, down_right, down_left)
    return torch.where(flat, in_row, torch.where(steep, in_column, diagonal))


def _grow(seed: Tensor, allowed: Tensor) -> Tensor:
    """Extend the seed to all allowed pixels connected to it."""
    while True:
        grown = (F.max_pool2d(seed.float(), 3, stride=1, padding=1) > 0) & allowed
        if torch.equal(grown, seed):
            return seed
        seed = grown
