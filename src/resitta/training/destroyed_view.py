"""Views that destroy the shape of what an image shows and keep its colours: how much a prediction rests on shape."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Destruction = Literal["patch", "pixel", "occlusion"]
SIDE = 4
"""Patches in each direction."""


def shuffle_patches(images: Tensor, generator: torch.Generator) -> Tensor:
    """Cut each image into 4×4 patches and put them together in an order of its own.

    Sides that are no multiples of 4 are resized to the next lower ones, and back in the end.
    """
    height, width = (max(SIDE, size // SIDE * SIDE) for size in images.shape[2:])
    count, channels = images.shape[:2]
    parts = _resized(images, height, width).reshape(count, channels, SIDE, height // SIDE, SIDE, width // SIDE)
    parts = parts.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # N × 16 × channels × height × width of a patch
    order = torch.rand(count, SIDE * SIDE, generator=generator).argsort(dim=1).to(images.device)
    parts = parts[torch.arange(count, device=images.device)[:, None], order]
    parts = parts.reshape(count, SIDE, SIDE, *parts.shape[2:]).permute(0, 3, 1, 4, 2, 5)
    return _resized(parts.reshape(count, channels, height, width), *images.shape[2:])


def shuffle_pixels(images: Tensor, generator: torch.Generator) -> Tensor:
    """Put the pixels of all images into one random order."""
    order = torch.randperm(images.shape[2] * images.shape[3], generator=generator).to(images.device)
    return images.flatten(2)[:, :, order].view_as(images)


def occlude(images: Tensor, _generator: torch.Generator) -> Tensor:
    """Cover the middle, half of each side, with the mean colour of the image.

    >>> occlude(torch.eye(4)[None, None], torch.Generator())[0, 0]
    tensor([[1.0000, 0.0000, 0.0000, 0.0000],
            [0.0000, 0.2500, 0.2500, 0.0000],
            [0.0000, 0.2500, 0.2500, 0.0000],
            [0.0000, 0.0000, 0.0000, 1.0000]])
    """
    covered = images.clone()
    height, width = images.shape[2:]
    top, left = height // 4, width // 4
    covered[:, :, top : top + height // 2, left : left + width // 2] = images.mean(dim=(2, 3), keepdim=True)
    return covered


DESTRUCTIONS: dict[Destruction, Callable[[Tensor, torch.Generator], Tensor]] = {
    "patch": shuffle_patches,
    "pixel": shuffle_pixels,
    "occlusion": occlude,
}


def _resized(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[2:] == (height, width):
        return images
    return F.interpolate(images, (height, width), mode="bilinear", antialias=True)
