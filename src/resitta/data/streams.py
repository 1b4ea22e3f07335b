"""Streams: an order of images from several domains. All labels are known; pixels are read batch by batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resitta.data.datasets import ImageSet
from resitta.data.orders import Indices, shuffled

Order = Callable[[Indices, np.random.Generator], Indices]


@dataclass(frozen=True)
class Batch:
    """Consecutive samples of a stream; `domains` holds the domain of each."""

    images: Tensor
    labels: Indices
    domains: Indices


@dataclass(frozen=True)
class Stream:
    """Samples in order: sample i is image `index[i]` of `sets[domain[i]]`. A domain that returns is listed again."""

    names: tuple[str, ...]
    sets: tuple[ImageSet, ...]
    domain: Indices
    index: Indices

    def __len__(self) -> int:
        return len(self.domain)

    @property
    def classes(self) -> int:
        """How many classes the images have."""
        return max(images.classes for images in self.sets)

    @property
    def borders(self) -> tuple[int, ...]:
        """The sample at which each domain begins; empty when the domains are mixed."""
        starts = np.flatnonzero(np.diff(self.domain, prepend=-1))
        return tuple(starts.tolist()) if len(starts) == len(self.names) else ()

    def batches(self, size: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Read the stream as float images in [0, 1]; a batch may straddle a border, the last may be short."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            images, labels = self.read(self.domain[part], self.index[part])
            yield Batch(images.to(device).float().div_(255), labels, self.domain[part])

    def read(self, domain: Indices, index: Indices) -> tuple[Tensor, Indices]:
        """Return images (uint8) and labels of samples of any domains, in the given order."""
        places = [np.flatnonzero(domain == d) for d in np.unique(domain)]
        sets = [self.sets[int(domain[place[0]])] for place in places]
        images = torch.cat([images.read(index[place]) for images, place in zip(sets, places, strict=True)])
        labels = np.concatenate([images.labels[index[place]] for images, place in zip(sets, places, strict=True)])
        back = np.argsort(np.concatenate(places))
        return images[torch.from_numpy(back)], labels[back]


def continual(names: Sequence[str], sets: Sequence[ImageSet], order: Order, rng: np.random.Generator) -> Stream:
    """One domain after the other, each in its own order, without domain labels.

    >>> from resitta.data.datasets import ArrayImages
    >>> day, night = (ArrayImages(np.full((4, 8, 8, 3), v, np.uint8), np.arange(4)) for v in (200, 20))
    >>> stream = continual(["day", "night"], [day, night], shuffled, np.random.default_rng(0))
    >>> [batch.images.mean().item() > 0.5 for batch in stream.batches(4)]
    [True, False]
    """
    orders = [order(images.labels, rng) for images in sets]
    domain = np.repeat(np.arange(len(sets)), [len(indices) for indices in orders])
    return Stream(tuple(names), tuple(sets), domain, np.concatenate(orders))


def mixed(names: Sequence[str], sets: Sequence[ImageSet], rng: np.random.Generator) -> Stream:
    """All domains at once: a random permutation of everything."""
    stream = continual(names, sets, lambda labels, _: np.arange(len(labels)), rng)
    mix = shuffled(stream.domain, rng)
    return Stream(stream.names, stream.sets, stream.domain[mix], stream.index[mix])
