"""The number of classes of a classifier, found by a forward pass: that works for any architecture."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from resitta.errors import BadImages, BadSetting
from resitta.training.sharing import share

if TYPE_CHECKING:
    from resitta.training.network import Network

T = TypeVar("T")
SIDES = (32, 224, 28, 64, 96, 128, 160, 192, 240, 256, 288, 299, 320, 336, 384, 448, 512, 16, 8)
"""The sides of square images that classifiers usually take; most take any."""
UNUSUAL = "it takes square images of none of the usual sizes"
"""Why a network that was asked did not answer."""


def count_classes(network: "Network") -> int:
    """Return the number of logits per image, from a forward pass of a copy on two grey images.

    >>> from resitta.training.network import Network
    >>> count_classes(Network(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7))))
    7
    """
    classes = probe(network, lambda twin, images: twin(images).shape[1])
    if classes is None:
        advice = "pass adapt(..., classes=10)"
        raise BadSetting(f"the number of classes of this model is not known: {UNUSUAL}; {advice}")
    return classes


@torch.no_grad()
def probe(network: "Network", ask: Callable[["Network", Tensor], T]) -> T | None:
    """Return what `ask` finds out with a copy of the network and two grey images, or None if no usual size is taken.

    The copy shares the weights and has its own buffers, so that a forward pass leaves no trace.
    """
    twin = network.around(share(network.model, own=())).eval()
    devices = [network.device] if network.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for channels, side in product(_channels(network), SIDES):
            try:
                return ask(twin, _grey(network, channels, side))
            except BadImages:  # not a size that this model takes
                continue
    return None


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
