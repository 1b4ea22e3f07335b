"""What an image says about its domain, apart from what it shows: nine numbers, no label and no model."""

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.training.strong_view import grey

NUMBERS = 9
"""Brightness, and the logarithms of eight amplitudes."""
DARK = 1e-6
"""Below this a mean square counts as none: of pixels in [0, 1] it is a quarter of one step in 256."""


def image_signature(images: Tensor) -> Tensor:
    """The signature of each image in [0, 1], N×9.

    Brightness; the log amplitudes of grey values: contrast, first, second and third differences, and first
    differences at half the resolution; those of colour: saturation, first and second differences.

    Noise, blur, fog and compression each change the ratios of these amplitudes in a way of their own, while what an
    image shows moves most of them together.

    >>> image_signature(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 9])
    """
    pixels = images.float()
    shades = grey(pixels)
    colours = (pixels - shades)[:, ::2]  # red and blue; without colour channels all of this is zero
    first, second = differences((shades,)), differences(differences((shades,)))
    tints = differences((colours,))
    parts: tuple[tuple[Tensor, ...], ...] = (
        (shades - shades.mean((1, 2, 3), keepdim=True),),
        first,
        second,
        differences(second),
        differences((halved(shades),)),
        (colours,),
        tints,
        differences(tints),
    )
    return torch.stack((shades.mean((1, 2, 3)), *map(log_amplitude, parts)), dim=1)


def differences(planes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Differences of neighbouring pixels: of one plane down and across, of two, each in its own direction.

    >>> down, across = differences((torch.tensor([[[[0.0, 1.0], [2.0, 5.0]]]]),))
    >>> down.flatten().tolist(), across.flatten().tolist()
    ([2.0, 4.0], [1.0, 3.0])
    """
    down, across = planes[0], planes[-1]
    return down.diff(dim=2), across.diff(dim=3)


def halved(planes: Tensor) -> Tensor:
    """Every second row and column, of means over 2×2 pixels; planes of one pixel in either direction stay."""
    return F.avg_pool2d(planes, 2) if min(planes.shape[2:]) > 1 else planes


def log_amplitude(planes: tuple[Tensor, ...]) -> Tensor:
    """½ log of the mean square of each image's pixels, added up over the planes.

    >>> log_amplitude((torch.tensor([[3.0, 3.0]]), torch.tensor([[4.0, 4.0]]))).exp()
    tensor([5.])
    """
    squares = [plane.flatten(1).square() for plane in planes]
    means = [square.mean(dim=1) if square.shape[1] else square.sum(dim=1) for square in squares]
    return 0.5 * (torch.stack(means).sum(dim=0) + DARK).log()
