"""Plasma: the random clouds of fog, by the diamond-square algorithm."""

import torch
from torch import Tensor

from resitta.data.corruptions.random import Draws


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
