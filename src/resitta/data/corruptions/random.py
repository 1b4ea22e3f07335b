"""Random numbers that belong to an image, not to a batch.

Every image gets a key, a hash of its own 8-bit content and of what is done to it. Number i of that image
is a fixed function of (key, i), so the draws do not depend on the batch size, the order, or the device.
The function is SplitMix64 (Steele, Lea and Flood, 2014): a counter times a constant, then bit mixing.

>>> keys = image_keys(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "an example")
>>> draws = Draws(keys).uniform(5)
>>> draws.shape, bool((draws[0] == draws[1]).all())
(torch.Size([2, 5]), True)
"""

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor

# The constants of SplitMix64 as signed 64-bit numbers; products wrap around, as they should.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


class Draws:
    """The random numbers of N images; each call returns fresh ones, the same for the same keys."""

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys
        self._calls = 0

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return N×shape numbers, uniform in [low, high), of 24 random bits each."""
        signed = self._int32(math.prod(shape)) >> 8
        return signed.float().mul_((high - low) * 2.0**-24).add_((low + high) / 2).view(len(signed), *shape)

    def normal(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """Return N×shape normal numbers by the Box-Muller transform, at most 5.8 deviations from the mean.

        Two uniforms u, v give r·cos(2πv) and r·sin(2πv) with r = √(-2 ln u).
        """
        count = math.prod(shape)
        half = (count + 1) // 2
        u, v = self.uniform(2, half).unbind(1)
        radius = torch.log1p(-u).mul_(-2).sqrt_().mul_(std)
        angle = v.mul_(2 * math.pi)
        pairs = torch.cat([radius * angle.cos(), radius * angle.sin()], 1)
        return pairs[:, :count].reshape(len(pairs), *shape).add_(mean)

    def integers(self, high: int | Tensor, *shape: int) -> Tensor:
        """Return N×shape whole numbers from 0 to high - 1; `high` may hold one bound per image."""
        return (self.uniform(*shape) * high).long()

    def _int32(self, count: int) -> Tensor:
        """Return N×count random 32-bit words; a 64-bit word of SplitMix64 holds two."""
        self._calls += 1
        stream = mix(self._keys ^ self._calls)
        counter = torch.arange(1, (count + 1) // 2 + 1, device=stream.device) * _GOLDEN
        return mix(stream[:, None] + counter).view(torch.int32)[:, :count]


def mix(z: Tensor) -> Tensor:
    """Scramble 64-bit words so that every input bit changes about half of the output bits (in place).

    A shift to the right copies the sign in torch, so the copies are masked away.

    >>> mix(torch.tensor([_GOLDEN])).item() % 2**64 == 0xE220A8397B1DCDAF  # SplitMix64, seed 0
    True
    """
    z ^= (z >> 30) & (2**34 - 1)
    z *= _MIX_1
    z ^= (z >> 27) & (2**37 - 1)
    z *= _MIX_2
    z ^= (z >> 31) & (2**33 - 1)
    return z


def image_keys(images: Tensor, purpose: str) -> Tensor:
    """Hash each 8-bit image together with a purpose, such as seed, corruption and severity: N int64 keys.

    A sum of the image's 64-bit words, each times its own odd random number: images that differ in one
    word never collide, others with probability about 2⁻⁶³.
    """
    bytes_ = images.flatten(1)
    words = F.pad(bytes_, (0, 8 - bytes_.shape[1] % 8)).view(torch.int64)
    weights = mix(torch.arange(1, words.shape[1] + 1, device=images.device) * _GOLDEN) | 1
    digest = hashlib.blake2b(f"{purpose} {tuple(images.shape[1:])}".encode(), digest_size=8).digest()
    return mix((words * weights).sum(1) ^ int.from_bytes(digest, "little", signed=True))
