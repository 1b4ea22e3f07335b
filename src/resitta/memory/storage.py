"""How a memory keeps its images: as they are or as bytes, on the model's device or on the host."""

from typing import Literal

import torch
from torch import Tensor

from resitta.training.network import Network

Place = Literal["model", "cpu"]


class Storage:
    """Turns images into what is kept of them, and back.

    Bytes hold pixels in 256 steps, a quarter of the memory: exact for images that were made from bytes.

    >>> network = Network(torch.nn.Linear(1, 1))
    >>> storage = Storage(network, place="cpu", as_bytes=True)
    >>> kept = storage.keep(torch.tensor([0.0, 0.2, 1.0]))
    >>> kept, storage.bring_back(kept)
    (tensor([  0,  51, 255], dtype=torch.uint8), tensor([0.0000, 0.2000, 1.0000]))
    """

    def __init__(self, network: Network, *, place: Place = "model", as_bytes: bool = False) -> None:
        self.network, self.place, self.as_bytes = network, place, as_bytes

    def keep(self, images: Tensor) -> Tensor:
        """Return images in the form they are kept in."""
        if self.as_bytes:
            images = self.network.pixels(images).mul(255).round_().clamp_(0, 255).to(torch.uint8)
        return images.cpu() if self.place == "cpu" else images

    def bring_back(self, kept: Tensor) -> Tensor:
        """Return kept images as the model takes them."""
        images = kept.to(self.network.device, non_blocking=True)
        return self.network.from_pixels(images.to(self.network.dtype).div_(255)) if self.as_bytes else images
