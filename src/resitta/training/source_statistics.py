"""What a method knows of its source data: tensors computed once, from a few clean images, before the stream begins.

A method that needs them has a setting `source` and writes `Method.prepare`. The setting holds images (`SourceImages`),
or the path of a file, until an adapter is made; from then on it holds `SourceStatistics`.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resitta.errors import BadImages, BadSetting
from resitta.inputs import Preprocessing, checked, for_network, is_batch, is_list_of_images

logger = logging.getLogger(__name__)

MOST = 5000
"""How many images are read; a few thousand are enough for any method, and more would only take longer."""
BATCH = 64
"""How many images of a tensor form a batch; those of a loader stay as they come."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class SourceStatistics:
    """Tensors by name, the method they were computed for, and from how many images. Equal tensors make equal ones.

    `model` is a digest of the model they belong to, empty if that was checked elsewhere. `origin` says whose images
    they come from, if nobody chose them.

    >>> SourceStatistics("eata", {"fisher": torch.ones(2)}, images=100)
    <statistics of 100 source images for eata, 68500d90>
    """

    method: str
    tensors: Mapping[str, Tensor]
    images: int
    model: str = ""
    origin: str = ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the method and the tensors."""
        digest = hashlib.sha256(self.method.encode())
        for name, tensor in sorted(self.tensors.items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            digest.update(values.flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceStatistics) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        from_where = f" ({self.origin})" if self.origin else ""
        return f"<statistics of {self.images} source images{from_where} for {self.method}, {self.digest[:8]}>"


class SourceImages:
    """Batches of clean images, as a setting holds them: a tensor, an array, or any iterable such as a DataLoader.

    Batches are what `resitta.images` takes, or tuples that begin with that, and should come in random order, as many
    images in each as will be in a batch of the stream. The images of one tensor or array are shuffled here, always in
    the same way.
    """

    def __init__(self, images: Tensor | Iterable[Any]) -> None:
        self.images = images

    def __iter__(self) -> Iterator[Any]:
        """The batches as they were given."""
        if not isinstance(self.images, Tensor | np.ndarray):
            yield from self.images
        elif self.images.ndim:
            order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0))[:MOST]
            for some in torch.split(order, BATCH):
                is_tensor = isinstance(self.images, Tensor)
                yield self.images[some.to(self.images.device) if is_tensor else some.numpy()]

    def __repr__(self) -> str:
        return f"<source images from a {type(self.images).__name__}>"

    @property
    def count(self) -> int:
        """How many there will be at most."""
        sized = self.images if isinstance(self.images, Tensor | np.ndarray) else getattr(self.images, "dataset", None)
        return min(MOST, len(sized)) if hasattr(sized, "__len__") else MOST  # type: ignore[arg-type]


Source = Iterable[Any] | SourceStatistics | str | os.PathLike[str] | None
"""What the setting `source` takes."""


def as_source(value: object) -> SourceImages | SourceStatistics | str | None:
    """A value for the setting `source` in a form that can be compared: images are equal only to themselves.

    >>> as_source(torch.zeros(8, 3, 32, 32))
    <source images from a Tensor>
    """
    if value is None or isinstance(value, SourceImages | SourceStatistics):
        return value
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, Iterable):
        return SourceImages(value)
    wanted = "batches of clean images (a tensor or a DataLoader), or the path of a file that `resitta prepare` wrote"
    raise BadSetting(f"source must be {wanted}, found a {type(value).__name__}")


class CheckedBatches:
    """The first `MOST` source images as a network takes them; `taken` counts them. For one pass."""

    def __init__(self, source: SourceImages, network: Preprocessing, progress: Progress | None = None) -> None:
        self.source, self.network, self.progress = source, network, progress
        self.taken = 0

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.source:
            images = self._as_taken(batch)
            if self.taken + len(images) > MOST:
                logger.warning("source holds more than %s images; only the first %s are used", MOST, MOST)
                images = images[: MOST - self.taken]
            if len(images):
                yield images
            self.taken += len(images)
            if self.progress:
                self.progress(min(self.taken, self.source.count), self.source.count)
            if self.taken >= MOST:
                return
        if not self.taken:
            raise BadImages("source holds no images; give it some (a generator can be read only once: pass a list)")

    def _as_taken(self, batch: Any) -> Tensor:
        """The images of a batch, checked, where the network is and in its precision."""
        is_pair = isinstance(batch, tuple | list) and len(batch) and not is_list_of_images(batch)
        images = batch[0] if is_pair else batch
        try:
            images = images.to(self.network.device) if is_batch(images) else for_network(images, self.network)
            images, pixels = checked(images, self.network)
            pixels.check("raise")
        except BadImages as error:
            raise type(error)(f"source: {error}") from error
        return images
