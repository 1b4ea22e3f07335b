"""Frost textures: the public photographs where they are installed, otherwise painted ones.

The public sets draw from five photographs (the sixth beside them is never used). They come with the package
`imagecorruptions`; only its files are read, as the package itself does not run beside current versions of its
dependencies: `pip install --no-deps imagecorruptions` is enough.
"""

import importlib.util
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.data.corruptions.plasma import plasma
from resitta.data.corruptions.random import Draws
from resitta.errors import require

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
    """Say where the textures of the frost corruption come from: "public" photographs or "painted" here.

    >>> frost_texture_source() in ("public", "painted")
    True
    """
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
