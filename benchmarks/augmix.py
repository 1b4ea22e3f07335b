"""AugMix for a batch on one device (Hendrycks et al., 2020): what the public CIFAR-100 source network is trained with.

An image is mixed from itself and `WIDTH` chains of one to three operations: x' = (1-m) x + m Σ w_i chain_i(x), with
w ~ Dirichlet(1) and m ~ Beta(1, 1) for each image. The loss adds the Jensen-Shannon divergence of the predictions on
the image and two such mixtures.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH, DEPTH, SEVERITY = 3, 3, 3
CONSISTENCY = 12.0
"""The weight of the divergence in the loss."""

Operation = Callable[[Tensor, Tensor], Tensor]
"""Images in [0, 1] and one level in [0, 1] for each -> images."""


def augmix(images: Tensor) -> Tensor:
    """Return one mixture of each image.

    >>> augmix(torch.rand(8, 3, 32, 32)).shape
    torch.Size([8, 3, 32, 32])
    """
    count, device = len(images), images.device
    weights = torch.distributions.Dirichlet(torch.ones(WIDTH, device=device)).sample((count,))
    share = torch.rand(count, 1, 1, 1, device=device)  # Beta(1, 1)
    mixed = torch.zeros_like(images)
    for chain in range(WIDTH):
        mixed += weights[:, chain, None, None, None] * _chain(images)
    return (1 - share) * images + share * mixed


def _chain(images: Tensor) -> Tensor:
    """Apply one to three random operations to each image."""
    depth = torch.randint(1, DEPTH + 1, (len(images),), device=images.device)
    for step in range(DEPTH):
        which = torch.randint(len(OPERATIONS), (len(images),), device=images.device)
        which = torch.where(depth > step, which, -1)  # this image's chain has ended
        changed = images.clone()
        for number, operation in enumerate(OPERATIONS):
            chosen = (which == number).nonzero()[:, 0]
            if len(chosen):
                level = (0.1 + torch.rand(len(chosen), device=images.device) * (SEVERITY - 0.1)) / 10
                changed[chosen] = operation(images[chosen], level)
        images = changed
    return images


def consistency(logits: Tensor, parts: int = 3) -> Tensor:
    """The mean Jensen-Shannon divergence between the predictions on `parts` versions of each image.

    >>> consistency(torch.zeros(6, 4)).item()  # three equal predictions
    0.0
    """
    log_p = logits.log_softmax(dim=1).chunk(parts)
    log_mean = torch.logsumexp(torch.stack(log_p), dim=0) - math.log(parts)
    return torch.stack([F.kl_div(log_mean, p, reduction="batchmean", log_target=True) for p in log_p]).mean()


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp(min=1e-6), images)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Level the histogram of each channel, with Pillow's whole-number steps: coarse where there are few pixels."""
    flat = images.mul(255).round().long().flatten(2)
    counts = torch.zeros(*flat.shape[:2], 256, device=images.device, dtype=torch.long)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    brightest = counts.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - brightest) // 255
    table = (step // 2 + counts.cumsum(dim=2) - counts) // step.clamp(min=1)
    levelled = table.clamp(max=255).gather(2, flat).view_as(images) / 255
    return torch.where(step[..., None] > 0, levelled, images)


def _posterize(images: Tensor, level: Tensor) -> Tensor:
    bits = 4 - (level * 4).floor()
    kept = (2 ** (8 - bits))[:, None, None, None]
    return (images * 255 / kept).floor() * kept / 255


def _solarize(images: Tensor, level: Tensor) -> Tensor:
    return torch.where(images < 1 - level[:, None, None, None], images, 1 - images)


def _affine(images: Tensor, matrices: Tensor) -> Tensor:
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", align_corners=False)


def _signed(level: Tensor, most: float) -> Tensor:
    sign = torch.randint(0, 2, level.shape, device=level.device) * 2 - 1
    return level * most * sign


def _matrix(level: Tensor, row: int, column: int, most: float) -> Tensor:
    matrices = torch.eye(2, 3, device=level.device).repeat(len(level), 1, 1)
    matrices[:, row, column] = _signed(level, most)
    return matrices


def _rotate(images: Tensor, level: Tensor) -> Tensor:
    angle = _signed(level, math.pi / 6)
    zero = torch.zeros_like(angle)
    rows = (torch.stack((angle.cos(), -angle.sin(), zero), 1), torch.stack((angle.sin(), angle.cos(), zero), 1))
    return _affine(images, torch.stack(rows, 1))


def _shear_x(images: Tensor, level: Tensor) -> Tensor:
    return _affine(images, _matrix(level, 0, 1, 0.3))


def _shear_y(images: Tensor, level: Tensor) -> Tensor:
    return _affine(images, _matrix(level, 1, 0, 0.3))


def _translate_x(images: Tensor, level: Tensor) -> Tensor:
    return _affine(images, _matrix(level, 0, 2, 2 / 3))  # a third of the side; coordinates span two


def _translate_y(images: Tensor, level: Tensor) -> Tensor:
    return _affine(images, _matrix(level, 1, 2, 2 / 3))


OPERATIONS: tuple[Operation, ...] = (
    _autocontrast,
    _equalize,
    _posterize,
    _rotate,
    _solarize,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)
"""The nine operations of AugMix; none of them is among the test corruptions."""
