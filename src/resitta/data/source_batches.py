"""Clean images of a set in the form in which methods read source data."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from resitta.data.corrupted import evenly
from resitta.data.datasets import ImageSet


class SourceBatches:
    """Batches of `count` images of a set, evenly chosen among the classes, in an order that is always the same.

    They are floats in [0, 1]. It can be iterated again and again.

    >>> from resitta.data.datasets import ArrayImages
    >>> images = ArrayImages(np.zeros((9, 8, 8, 3), np.uint8), np.arange(9) % 3)
    >>> [tuple(batch.shape) for batch in SourceBatches(images, 6, size=4)]
    [(4, 3, 8, 8), (2, 3, 8, 8)]
    """

    def __init__(self, images: ImageSet, count: int | None = None, *, size: int = 64) -> None:
        self.dataset = evenly(images, count)
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        order = np.random.default_rng(0).permutation(len(self.dataset))
        for start in range(0, len(order), self.size):
            yield self.dataset.read(order[start : start + self.size]).float() / 255
