"""Weather: snow, fog and frost. Images are N×3×H×W, from 0 to 255.

The public sets draw frost from five photographs (the sixth beside them is never used). They come with the package
`imagecorruptions`; only its files are read, as the package itself does not run beside current versions of its
dependencies: `pip install --no-deps imagecorruptions` is enough. Without it, painted textures take their place.
"""

import importlib.util
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.data.corruptions.filters import enlarge, smear
from resitta.data.corruptions.random import Draws
from resitta.errors import require


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


def plasma(draws: Draws, side: int, decay: float) -> Tensor:
    """Return clouds from 0 to 1, N×side×side, by the diamond-square algorithm on a torus.

    Each level halves the step: first the centres of the squares, then the centres of the diamonds between
    them, each the mean of its four neighbours plus a random part, which is `decay`² smaller on the next level.
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


_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
# Mean colour and contrast (standard deviation) of the photographs, which the painted textures share.
_LOOKS = (
    ((78, 149, 166), 18),
    ((201, 205, 214), 22),
    ((201, 205, 214), 22),
    ((138, 153, 165), 29),
    ((112, 123, 135), 43),
)
_PAINTED_SIDE = 384


def frost_texture_source() -> str:
    """Say where the textures of the frost corruption come from: "public" photographs or "painted" here."""
    return "painted" if _folder() is None else "public"


@lru_cache(maxsize=8)
def textures(scale: float, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the textures, K×3×R×C in 8 bits, and the K×2 sizes up to which each is filled.

    They are resized by `scale`, or by more where height×width would not fit.
    """
    pictures = [_resized(picture, scale, height, width) for picture in _originals(_folder())]
    sizes = torch.tensor([picture.shape[1:] for picture in pictures])
    rows, columns = sizes.amax(0).tolist()
    padded = [F.pad(p, (0, columns - p.shape[2], 0, rows - p.shape[1])) for p in pictures]
    return torch.stack(padded).to(device), sizes.to(device)


def _folder() -> Path | None:
    spec = importlib.util.find_spec("imagecorruptions")
    if spec is None or spec.submodule_search_locations is None:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "frost"
    return folder if folder.is_dir() else None


@lru_cache(maxsize=2)
def _originals(folder: Path | None) -> list[Tensor]:
    if folder is None:
        return [_paint(Draws(torch.tensor([number])), *look) for number, look in enumerate(_LOOKS)]
    pillow = require("PIL.Image", "bench")
    pixels = (np.array(pillow.open(folder / name).convert("RGB")) for name in _FILES)
    return [torch.from_numpy(picture).permute(2, 0, 1) for picture in pixels]


def _resized(picture: Tensor, scale: float, height: int, width: int) -> Tensor:
    """Resize without smoothing first, as the public sets do: with it, frost is far too easy."""
    scale = max(scale, (height + 1) / picture.shape[1], (width + 1) / picture.shape[2])
    resized = F.interpolate(picture[None].float(), scale_factor=scale, mode="bilinear", antialias=False)
    return resized[0].round().byte()


def _paint(draws: Draws, colour: tuple[int, int, int], contrast: int) -> Tensor:
    """Paint crystals of ice, each a fan of needles that grew until it met the next, under uneven light."""
    side, crystals, needles = _PAINTED_SIDE, 150, 250
    axis = torch.arange(side, dtype=torch.float32)
    pixels = torch.cartesian_prod(axis, axis)
    seeds = draws.uniform(crystals, 2, high=side)[0]
    crystal = torch.cdist(pixels, seeds).argmin(1)
    roots = seeds + draws.normal(crystals, 2, std=60)[0]  # a fan opens from a point outside of its crystal
    down, right = (pixels - roots[crystal]).unbind(1)
    needle = (torch.atan2(down, right) / math.pi * (needles // 2)).long() + needles // 2
    ice = draws.normal(crystals, needles + 1)[0][crystal, needle].view(side, side)
    light = plasma(draws, 512, 1.8)[0, :side, :side]
    picture = 0.5 * ice + 4 * light + 0.2 * draws.normal(side, side)[0]
    picture = contrast * (picture - picture.mean()) / picture.std()
    return (picture + torch.tensor(colour).view(3, 1, 1)).clamp_(0, 255).byte()
