"""Digital corruptions: pixelation and elastic warping. Images are N×3×H×W, from 0 to 255."""

import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.streams.corruptions.filters import smooth
from resitta.streams.corruptions.random import Draws


def pixelate(x: Tensor, _: Draws, share: float) -> Tensor:
    """Shrink by averaging, then enlarge by repeating pixels; each direction rounds to whole grey levels."""
    height, width = x.shape[2:]
    small = _average(x, max(int(width * share), 1))
    small = _average(small.mT, max(int(height * share), 1)).mT
    rows = _repeat(small.shape[2], height, x.device)
    return small[:, :, rows[:, None], _repeat(small.shape[3], width, x.device)]


def _average(x: Tensor, count: int) -> Tensor:
    """Average along the last dimension into `count` pixels, over the source pixels whose centres they hold."""
    width = x.shape[-1]
    edges = (torch.arange(count + 1, device=x.device) * width / count + 0.5).long()
    sums = F.pad(x.cumsum(-1), (1, 0))[..., edges].diff()
    return (sums / edges.diff() + 0.5).floor_()


def _repeat(few: int, many: int, device: torch.device) -> Tensor:
    """Return which of `few` pixels each of `many` shows: the one under its centre."""
    return ((torch.arange(many, device=device) + 0.5) * few / many).long()


def elastic_transform(x: Tensor, draws: Draws, strength: float, sigma: float, shift: float) -> Tensor:
    """Map the image affinely, with three corners moved at random, then displace every pixel smoothly."""
    height, width = x.shape[2:]
    rows = torch.arange(height, device=x.device, dtype=torch.float32)
    columns = torch.arange(width, device=x.device, dtype=torch.float32)
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"))
    x = _sample(x, _affine(grid, draws, shift), edge_twice=False)
    noise = draws.uniform(2, height, width, low=-1, high=1)
    displacement = smooth(noise, sigma, truncate=3.0, border="reflect") * strength
    return _sample(x, grid + displacement, edge_twice=True)


def _affine(grid: Tensor, draws: Draws, shift: float) -> Tensor:
    """Return where each pixel comes from when three corners of a centred square move by up to `shift`."""
    height, width = grid.shape[1:]
    centre = torch.tensor([width // 2, height // 2])
    corners = centre + torch.tensor([[1, 1], [1, -1], [-1, -1]]) * (min(height, width) // 3)
    corners = corners.to(grid)
    moved = corners + draws.uniform(3, 2, low=-shift, high=shift)
    back = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), corners.expand_as(moved))
    by_column, by_row, offset = back[:, :, :, None, None].unbind(1)
    return by_column * grid[0] + by_row * grid[1] + offset


def _sample(x: Tensor, at: Tensor, *, edge_twice: bool) -> Tensor:
    """Interpolate x at N×2×H×W coordinates in pixels; outside lies the mirrored image.

    The mirror stands on the outer rim of the edge pixels, which then appear twice, or on their centres.
    """
    columns, rows = at.unbind(1)
    if edge_twice:
        normal = ((2 * side + 1) / size - 1 for side, size in ((columns, x.shape[3]), (rows, x.shape[2])))
    else:
        normal = (2 * side / (size - 1) - 1 for side, size in ((columns, x.shape[3]), (rows, x.shape[2])))
    grid = torch.stack(tuple(normal), -1)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=not edge_twice)
