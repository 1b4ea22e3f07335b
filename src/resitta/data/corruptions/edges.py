"""Canny's edge detector (1986) for a batch, as the public spatter corruption uses it."""

import torch
import torch.nn.functional as F
from torch import Tensor

_ACROSS = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))
_TAN_22 = 0.41421356  # tan 22.5°; tan 67.5° is 2 more


def canny(x: Tensor, *, low: float, high: float) -> Tensor:
    """Mark the edges of N×1×H×W images from 0 to 255.

    An edge is a ridge of the gradient's strength |dx| + |dy| (Sobel) above `low` that hangs together with a
    place above `high`.

    >>> step = torch.tensor([0.0, 0.0, 200.0, 200.0]).expand(1, 1, 4, 4)
    >>> canny(step, low=50, high=150)[0, 0, 0].tolist()
    [False, True, False, False]
    """
    across = x.new_tensor(_ACROSS)
    sobel = torch.stack([across, across.T])[:, None]
    gradient = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), sobel)
    strength = gradient.abs().sum(1, keepdim=True)
    ridge = _is_ridge(strength, gradient[:, :1], gradient[:, 1:])
    weak = ridge & (strength > low)
    return _grow(ridge & (strength > high), weak)


def _is_ridge(strength: Tensor, dx: Tensor, dy: Tensor) -> Tensor:
    """Tell where the strength is greatest along the gradient's direction, rounded to 45°.

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
    """Extend the seed to all allowed pixels that hang together with it."""
    while True:
        grown = (F.max_pool2d(seed.float(), 3, stride=1, padding=1) > 0) & allowed
        if torch.equal(grown, seed):
            return seed
        seed = grown
