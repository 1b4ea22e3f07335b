"""Statistics of every class and channel, kept in 32 bits or in the upper 24 of them."""

from typing import Literal

import torch
from torch import Tensor, nn

Bits = Literal[24, 32]


def to_24_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round float32 to its upper 24 bits, 16 of them significant: an error of at most 2⁻¹⁶; return 16 bits and 8.

    >>> high, low = to_24_bits(torch.tensor([1.0, -3.14159274]))
    >>> from_24_bits(high, low)
    tensor([ 1.0000, -3.1416])
    """
    bits = values.float().contiguous().view(torch.int32) + 0x80
    return (bits >> 16).to(torch.int16), (bits >> 8).bitwise_and_(0xFF).to(torch.uint8)


def from_24_bits(high: Tensor, low: Tensor) -> Tensor:
    """Put the parts together again, exactly.

    >>> value = torch.tensor([0.5, -1e-30, 3e38])
    >>> once = from_24_bits(*to_24_bits(value))
    >>> torch.equal(from_24_bits(*to_24_bits(once)), once)
    True
    """
    return ((high.int() << 16) | (low.int() << 8)).view(torch.float32)


class ClassRows(nn.Module):
    """K×2×C: the mean and the variance of each class in each channel; all classes begin with the same.

    >>> rows = ClassRows(torch.tensor([[0.0], [1.0]]), classes=1000, bits=24)
    >>> rows.read().shape, rows.nbytes
    (torch.Size([1000, 2, 1]), 6000)
    """

    def __init__(self, row: Tensor, classes: int, bits: Bits = 32) -> None:
        super().__init__()
        self.exact = bits == 32
        rows = row.repeat(classes, 1, 1)
        names = ("values",) if self.exact else ("high", "low")
        for name, part in zip(names, (rows,) if self.exact else to_24_bits(rows), strict=True):
            self.register_buffer(name, part)

    def read(self) -> Tensor:
        """The statistics; they may be the stored tensor itself."""
        return self.get_buffer("values") if self.exact else from_24_bits(*self.buffers())

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """Replace them."""
        for place, part in zip(self.buffers(), (rows,) if self.exact else to_24_bits(rows), strict=True):
            place.copy_(part)

    @property
    def nbytes(self) -> int:
        """How many bytes they take."""
        return sum(part.nbytes for part in self.buffers())
