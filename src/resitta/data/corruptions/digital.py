"""Digital corruptions: pixelation and elastic warping. Images are N×3×H×W, from 0 to 255."""

import torch
import torch.nn.functional as F
from torch import Tensor

from resitta.data.corruptions.filters import smooth
from resitta.data.corruptions.random import Draws


def pixelate(x: Tensor, _: Draws, *, share: float) -> Tensor:
    """Shrink by averaging, then enlarge by repeating pixels; each direction rounds to whole grey levels."""
    height, width = x.shape[2:]
    small = _average(_average(x, 3, max(int(width * share), 1)), 2, max(int(height * share), 1))
    wide = small.index_select(3, _repeat(small.shape[3], width, x.device))
    return wide.index_select(2, _repeat(small.shape[2], height, x.device))


def _average(x: Tensor, dim: int, count: int) -> Tensor:
    """Average along one dimension into `count` pixels, each over the pixels whose centres it covers."""
    edges = (torch.arange(count + 1, device=x.device) * x.shape[dim] / count + 0.5).long()
    before = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), x.cumsum(dim)], dim)
    sums = before.index_select(dim, edges).diff(dim=dim)
    counts = edges.diff().view(-1, *[1] * (3 - dim))
    return (sums / counts + 0.5).floor_()


def _repeat(few: int, many: int, device: torch.device) -> Tensor:
    """Return which of `few` pixels each of `many` shows: the one under its centre."""
    return ((torch.arange(many, device=device) + 0.5) * few / many).long()


def elastic_transform(x: Tensor, draws: Draws, *, strength: float, sigma: float, shift: float) -> Tensor:
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
    back: Tensor = torch.linalg.solve(F.pad(moved, (0, 1), value=1.0), corners.expand_as(moved))
    by_column, by_row, offset = back[:, :, :, None, None].unbind(1)
    return by_column * grid[0] + by_row * grid[1] + offset


def _sample(x: Tensor, at: Tensor, *, edge_twice: bool) -> Tensor:
    """Interpolate x at N×2×H×W coordinates in pixels; outside lies the mirrored image.

    The mirror stands on the rim of the edge pixels, which then appear twice in a row, or on their centres.
    """
    sides = torch.tensor([x.shape[3], x.shape[2]], device=x.device).view(2, 1, 1)
    unit = (2 * at + 1) / sides - 1 if edge_twice else 2 * at / (sides - 1) - 1
    sampled: Tensor = F.grid_sample(x, unit.movedim(1, -1), padding_mode="reflection", align_corners=not edge_twice)
    return sampled
