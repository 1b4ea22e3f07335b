"""Weather: snow, fog and frost. Images are N×3×H×W, from 0 to 255."""

import math

import torch
from torch import Tensor

from resitta.data.corruptions.filters import enlarge, smear
from resitta.data.corruptions.frost import textures
from resitta.data.corruptions.plasma import plasma
from resitta.data.corruptions.random import Draws


def snow(
    x: Tensor,
    draws: Draws,
    *,
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
    flakes = (layer * (layer >= threshold)).clamp_(0, 1).mul_(255).floor_()
    angle = draws.uniform(low=-135, high=-45)
    falling = smear(flakes, int(radius), sigma, angle).add_(0.5).floor_()
    grey = (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    whitened = torch.maximum(x, grey * 1.5 + 127.5)
    return whitened.lerp(x, share) + falling + falling.flip(2, 3)


def fog(x: Tensor, draws: Draws, *, thickness: float, decay: float) -> Tensor:
    """Add a cloud and scale the light back: (x + 255·thickness·cloud) · m/(m + thickness), m = brightest/255."""
    height, width = x.shape[2:]
    cloud = plasma(draws, 2 ** math.ceil(math.log2(max(height, width))), decay)[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True) / 255
    return (x + 255 * thickness * cloud) * (brightest / (brightest + thickness))


def frost(x: Tensor, draws: Draws, *, share: float, ice: float, scale: float) -> Tensor:
    """Lay a random crop of a random frost texture over the image: share·x + ice·texture."""
    height, width = x.shape[2:]
    pictures, sizes = textures(scale, height, width, x.device)
    which = draws.integers(len(pictures))
    top = draws.integers(sizes[which, 0] - height)
    left = draws.integers(sizes[which, 1] - width)
    crops = pictures.unfold(2, height, 1).unfold(3, width, 1)[which, :, top, left]
    return x * share + crops * ice
