"""Which samples are out-of-distribution: pure functions of images and logits, on their device."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.training.entropy import entropy

BLOCK = 4


def contrast(images: Tensor) -> Tensor:
    """The standard deviation of the pixels of each image around the mean of their channel.

    >>> contrast(torch.tensor([[[[0.0, 1.0]]], [[[0.5, 0.5]]]]))
    tensor([0.5000, 0.0000])
    """
    deviation = images - images.mean(dim=(2, 3), keepdim=True)  # many times faster on a CPU than torch's var
    return deviation.square().mean(dim=(1, 2, 3)).sqrt()


def is_noise(images: Tensor) -> Tensor:
    """Whether the pixels of each image are independent of their neighbours.

    Averaging blocks of k×k pixels leaves 1/k² of the variance of independent pixels, and far more of any picture,
    even under heavy noise. The bound is two standard errors above 1/k², over all blocks and channels. Images of less
    than 16 pixels a side have too few blocks to tell.

    >>> ramp = torch.linspace(0, 1, 32).expand(1, 3, 32, 32)
    >>> is_noise(torch.rand(1, 3, 32, 32)).item(), is_noise(ramp).item()
    (True, False)
    """
    if min(images.shape[2:]) < 4 * BLOCK:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device)
    coarse = F.avg_pool2d(images, BLOCK)
    error = math.sqrt(2 / coarse[0].numel())
    return contrast(coarse) ** 2 < contrast(images) ** 2 * (1 + 2 * error) / BLOCK**2


def is_clipped(images: Tensor) -> Tensor:
    """Whether nearly all pixels of each image in [0, 1] are black or white, and both occur.

    >>> ramp = torch.linspace(0, 1, 32).expand(1, 3, 32, 32)
    >>> is_clipped(ramp.round()).item(), is_clipped(ramp).item(), is_clipped(ramp * 0 + 1).item()
    (True, False, False)
    """
    dark, bright = ((end < 1 / 255).float().mean(dim=(1, 2, 3)) for end in (images, 1 - images))
    return (dark + bright > 0.95) & (dark > 0.01) & (bright > 0.01)


def unknown(images: Tensor, logits: Tensor, *, max_entropy: float, min_contrast: float) -> Tensor:
    """Which samples are too uncertain (entropy above a share of log C), too flat, clipped, or noise.

    >>> sure, unsure = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> images = torch.linspace(0, 1, 8).expand(2, 1, 8, 8)
    >>> unknown(images, torch.cat([sure, unsure]), max_entropy=0.99, min_contrast=0.001)
    tensor([False,  True])
    """
    images = images.float()
    uncertain = entropy(logits.float()) > max_entropy * math.log(logits.shape[1])
    return uncertain | (contrast(images) < min_contrast) | is_clipped(images) | is_noise(images)
