"""A sliding window: the latest images of a stream that brings them one at a time."""

from typing import Any

import torch
from torch import Tensor, nn


class SlidingWindow(nn.Module):
    """Joins a single image with those before it; a batch of another size passes and leaves the window alone.

    >>> window = SlidingWindow(2)
    >>> [window.add(torch.full((1, 1), float(number))) for number in range(4)]  # every second time all are new
    [False, True, False, True]
    >>> window.joined(torch.full((1, 1), 4.0)).flatten().tolist()
    [3.0, 4.0]
    """

    images: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.fresh = 0
        self.register_buffer("images", torch.empty(0, device="cpu"), persistent=False)  # the shape is not known yet

    def takes(self, images: Tensor) -> bool:
        """Whether images are joined with those before them."""
        return self.length > 1 and len(images) == 1

    def joined(self, images: Tensor) -> Tensor:
        """Return the window as it is after this image, or the batch itself."""
        if not self.takes(images) or self.images.shape[1:] != images.shape[1:]:
            return images
        return torch.cat([self.images.to(images), images])[-self.length :]

    def add(self, images: Tensor) -> bool:
        """Take an image in; return whether as many have come since this was last so as the window is long."""
        self.images = self.joined(images)
        self.fresh = (self.fresh + 1) % self.length
        return self.fresh == 0

    def get_extra_state(self) -> dict[str, Any]:
        """Return the images and their count."""
        return {"images": self.images, "fresh": self.fresh}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.images, self.fresh = state["images"].to(self.images.device), state["fresh"]
