"""Digital corruptions: contrast, brightness, saturation, pixelation, elastic warping and JPEG compression.

Images are N×3×H×W, from 0 to 255. Brightness and saturation change one coordinate of HSV. With V = max(r, g, b) and
S = (V - min(r, g, b)) / V no conversion is needed: scaling V scales all channels, scaling S their distances from V.
"""

import math

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


def contrast(x: Tensor, _: Draws, *, share: float) -> Tensor:
    """Shrink the distances from each channel's mean."""
    return x.mean((2, 3), keepdim=True).lerp(x, share)


def brightness(x: Tensor, _: Draws, *, amount: float) -> Tensor:
    """Add to the value of HSV: x · V'/V, and grey V' where the pixel was black."""
    value = x.amax(1, keepdim=True)
    brighter = (value + 255 * amount).clamp_(max=255)
    return torch.where(value > 0, x * (brighter / value), brighter)


def saturate(x: Tensor, _: Draws, *, factor: float, amount: float) -> Tensor:
    """Scale the saturation of HSV: V - (V - x) · S'/S; a grey pixel has the hue of red."""
    value, dark = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    saturation = (value - dark) / value.clamp(min=1)
    more = (saturation * factor + amount).clamp_(max=1)
    coloured = value - (value - x) * (more / saturation)
    reddish = value * torch.cat([torch.ones_like(more), 1 - more, 1 - more], 1)
    return torch.where(saturation > 0, coloured, reddish)


# Tables K.1 and K.2 of the JPEG standard, row by row.
_LUMINANCE = """
    16 11 10 16  24  40  51  61    12 12 14 19  26  58  60  55
    14 13 16 24  40  57  69  56    14 17 22 29  51  87  80  62
    18 22 37 56  68 109 103  77    24 35 55 64  81 104 113  92
    49 64 78 87 103 121 120 101    72 92 95 98 112 100 103  99
"""
_CHROMINANCE = """
    17 18 24 47 99 99 99 99    18 21 26 66 99 99 99 99
    24 26 56 99 99 99 99 99    47 66 99 99 99 99 99 99
    99 99 99 99 99 99 99 99    99 99 99 99 99 99 99 99
    99 99 99 99 99 99 99 99    99 99 99 99 99 99 99 99
"""


def jpeg_compression(x: Tensor, _: Draws, *, quality: float) -> Tensor:
    """Compress and decompress images N×3×H×W from 0 to 255 at a quality from 1 to 100."""
    height, width = x.shape[2:]
    padded = F.pad(x, (0, -width % 16, 0, -height % 16), mode="replicate")
    luma, chroma = _to_ycc(padded)
    luma = _code(luma, _LUMINANCE, quality)
    chroma = _double(_code(_halve(chroma), _CHROMINANCE, quality))
    return _to_rgb(luma, chroma)[:, :, :height, :width]


def _to_ycc(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return luma, N×H×W, and the two parts of the chroma one after the other, 2N×H×W."""
    r, g, b = x.unbind(1)
    luma = _round(0.299 * r + 0.587 * g + 0.114 * b)
    blue = 128 - 0.168735892 * r - 0.331264108 * g + 0.5 * b
    red = 128 + 0.5 * r - 0.418687589 * g - 0.081312411 * b
    return luma, _round(torch.cat([blue, red]))


def _to_rgb(luma: Tensor, chroma: Tensor) -> Tensor:
    blue, red = (chroma - 128).chunk(2)
    r = luma + 1.402 * red
    g = luma - 0.344136286 * blue - 0.714136286 * red
    b = luma + 1.772 * blue
    return _round(torch.stack([r, g, b], 1)).clamp_(0, 255)


def _halve(x: Tensor) -> Tensor:
    """Average 2×2 pixels; halves are rounded up and down alternately, which preserves the mean."""
    pairs = x[:, ::2] + x[:, 1::2]
    total = pairs[..., ::2] + pairs[..., 1::2]
    turn = torch.arange(total.shape[-1], device=x.device) % 2 + 1
    return total.add_(turn).div_(4).floor_()


def _double(x: Tensor) -> Tensor:
    """Enlarge twofold with weights 3/4 for the nearer pixel and 1/4 for the farther, in both directions."""
    padded = F.pad(x[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    near, above, below = 3 * padded[:, 1:-1], padded[:, :-2], padded[:, 2:]
    tall = torch.stack([near + above, near + below], 2).flatten(1, 2)
    near, left, right = 3 * tall[..., 1:-1], tall[..., :-2], tall[..., 2:]
    wide = torch.stack([near + left + 8, near + right + 7], 3).flatten(2)
    return (wide / 16).floor_()


def _code(x: Tensor, table: str, quality: float) -> Tensor:
    """Transform blocks of 8×8 to frequencies, round these to multiples of the table, and transform back."""
    n, height, width = x.shape
    blocks = x.view(n, height // 8, 8, width // 8, 8).transpose(2, 3).reshape(-1, 64) - 128
    steps, cosines = _steps(table, quality).to(x.device), _cosines().to(x.device)
    eighths = _round(blocks @ (8 * cosines.T))  # libjpeg keeps three binary digits
    kept = _round(eighths.abs() / (8 * steps)).mul_(steps).copysign_(eighths)
    pixels = _round(kept @ cosines + 128).clamp_(0, 255)
    return pixels.view(n, height // 8, width // 8, 8, 8).transpose(2, 3).reshape(n, height, width)


def _steps(table: str, quality: float) -> Tensor:
    """Scale a standard table to a quality, as the Independent JPEG Group does."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = torch.tensor([float(step) for step in table.split()])
    return ((steps * percent + 50) / 100).floor_().clamp_(1, 255)


def _cosines() -> Tensor:
    """Return the 64×64 matrix of the two-dimensional cosine transform of an 8×8 block."""
    k = torch.arange(8.0)
    one = torch.cos(k[:, None] * (2 * k + 1) * (math.pi / 16)) / 2
    one[0] /= math.sqrt(2)
    return torch.kron(one, one)


def _round(x: Tensor) -> Tensor:
    """Round halves up, in place."""
    return x.add_(0.5).floor_()
