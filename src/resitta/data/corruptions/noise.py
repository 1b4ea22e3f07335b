"""Noise: every value of an image changes on its own. Images are N×3×H×W, from 0 to 255."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from resitta.data.corruptions.random import Draws


def gaussian_noise(x: Tensor, draws: Draws, *, std: float) -> Tensor:
    """Add normal noise: x + 255·std·ε."""
    return draws.normal(*x.shape[1:], std=255 * std).add_(x)


def speckle_noise(x: Tensor, draws: Draws, *, std: float) -> Tensor:
    """Add normal noise in proportion to the light: x·(1 + std·ε)."""
    return draws.normal(*x.shape[1:], mean=1.0, std=std).mul_(x)


def impulse_noise(x: Tensor, draws: Draws, *, amount: float) -> Tensor:
    """Turn a share of the values white or black, both equally often (salt and pepper)."""
    u = draws.uniform(*x.shape[1:])
    return torch.where(u < amount / 2, 255.0, torch.where(u < amount, 0.0, x))


def shot_noise(x: Tensor, draws: Draws, *, photons: float) -> Tensor:
    """Count photons: Poisson(x/255 · photons) · 255/photons, at most 255.

    There are only 256 grey levels and counts above white are clipped, so the exact distributions fit in a
    small table. Walker's alias method draws from it: pick a column evenly, then keep it or take its alias.
    """
    most = int(photons)
    keep, alias = (table.to(x.device) for table in _photon_table(most))
    pick = draws.uniform(*x.shape[1:]).mul_(most + 1)
    column = pick.floor()
    cell = (x * (most + 1)).add_(column).long().flatten()
    stays = pick.sub_(column) < keep.index_select(0, cell).view_as(x)
    count = torch.where(stays, column, alias.index_select(0, cell).view_as(x))
    return count.mul_(255 / photons)


@lru_cache(maxsize=15)
def _photon_table(most: int) -> tuple[Tensor, Tensor]:
    """Return the alias tables of min(Poisson(level/255 · most), most), one grey level after the other."""
    rate = torch.arange(256, dtype=torch.float64)[:, None] / 255 * most
    count = torch.arange(most, dtype=torch.float64)
    chance = torch.exp(torch.xlogy(count, rate) - rate - torch.lgamma(count + 1))
    white = (1 - chance.sum(1, keepdim=True)).clamp(min=0)
    keep, alias = alias_table(torch.cat([chance, white], 1))
    return keep.flatten(), alias.flatten()


def alias_table(chances: Tensor) -> tuple[Tensor, Tensor]:
    """Level each row of K chances into K columns of equal height that hold at most two outcomes.

    The poorest column is filled up from the richest until all are level (Walker's method).
    """
    columns = chances.shape[1]
    height = chances * columns
    level = torch.zeros_like(height, dtype=torch.bool)
    keep = torch.ones_like(height)
    alias = torch.arange(columns).expand_as(height).clone()
    for _ in range(columns - 1):
        low, poor = height.masked_fill(level, math.inf).min(1, keepdim=True)
        rich = height.masked_fill(level, -math.inf).argmax(1, keepdim=True)
        keep.scatter_(1, poor, low)
        alias.scatter_(1, poor, rich)
        level.scatter_(1, poor, True)
        height.scatter_add_(1, rich, low - 1)
    return keep.float(), alias.float()
