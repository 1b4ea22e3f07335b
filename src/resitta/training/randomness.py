"""Randomness is passed in: one CPU generator holds the seed, and generators elsewhere are derived from it.

A generator on the host can be saved, restored and compared whatever device the model is on, and drawing
from it never waits for an accelerator.
"""

import torch


def device_generator(generator: torch.Generator, device: torch.device | str) -> torch.Generator:
    """Start a generator on `device`, seeded by one integer drawn from a CPU `generator`.

    Use it for large draws (noise, dropout masks) that should happen where the images are. The CPU generator
    moves on by one draw, so two calls give two different streams.

    >>> noise = device_generator(torch.Generator().manual_seed(1), "cpu")
    >>> again = device_generator(torch.Generator().manual_seed(1), "cpu")
    >>> torch.equal(torch.randn(5, generator=noise), torch.randn(5, generator=again))
    True
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device="cpu"))
    return torch.Generator(device=device).manual_seed(seed)
