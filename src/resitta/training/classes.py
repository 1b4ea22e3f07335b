"""The number of classes of a classifier, found by a forward pass: that works for any architecture."""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from resitta.errors import BadImages, BadSetting
from resitta.training.sharing import share

if TYPE_CHECKING:
    from resitta.training.network import Network

SIDES = (32, 224, 28, 64, 96, 128, 160, 192, 240, 256, 288, 299, 320, 336, 384, 448, 512, 16, 8)
"""The sides of square images that classifiers usually take; most take any."""


@torch.no_grad()
def count_classes(network: "Network") -> int:
    """Return the number of logits per image, from a forward pass of a copy on two grey images.

    The copy shares the weights and has its own buffers, so that the pass leaves no trace.

    >>> from resitta.training.network import Network
    >>> count_classes(Network(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7))))
    7
    """
    twin = network.around(share(network.model, own=())).eval()
    devices = [network.device] if network.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for channels, side in product(_channels(network), SIDES):
            try:
                return twin(_grey(network, channels, side)).shape[1]
            except BadImages:  # not a size that this model takes
                continue
    reason = "it takes square images of none of the usual sizes"
    raise BadSetting(f"the number of classes of this model is not known: {reason}; pass adapt(..., classes=10)")


def _channels(network: "Network") -> Iterator[int]:
    """How many channels the images may have, the likeliest first."""
    convolutions = [module for module in network.model.modules() if isinstance(module, nn.Conv2d)]
    likely = [] if network.mean is None else [network.mean.numel()]
    likely += [convolution.in_channels for convolution in convolutions[:1]]
    yield from dict.fromkeys([*likely, 3, 1])


def _grey(network: "Network", channels: int, side: int) -> Tensor:
    pixels = torch.full((2, channels, side, side), 0.5, device=network.device)
    known = network.mean is None or network.mean.numel() == channels
    return (network.from_pixels(pixels) if known else pixels).to(network.dtype)
