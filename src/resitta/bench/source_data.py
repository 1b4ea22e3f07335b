"""Source data for the methods of a bench that need it: given, or clean images of the bench itself."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from resitta.bench.loop import Progress
from resitta.checkpoint.fingerprint import Fingerprint
from resitta.checkpoint.source_data import prepare, read_statistics, with_statistics, write_statistics
from resitta.data.corrupted import fingerprint
from resitta.data.datasets import ImageSet, holds_corruptions, open_images
from resitta.data.source_batches import SourceBatches
from resitta.errors import BadSetting
from resitta.method import Method, create
from resitta.training.network import Network
from resitta.training.source_statistics import SourceStatistics

STATISTICS = ".safetensors"
"""How the name of a file with statistics ends; any other path leads to images."""
OWN = "clean images of the bench"
Key = Callable[[Any], str]
"""From what is known to a digest of it and of all else."""


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """Where methods that need source data get it.

    `given`: images, or the path of images or of a file of `resitta prepare`. Without it the bench's own `data` are
    used, if they are clean. `count` images, evenly chosen, are read in batches of `size`. `cache` keeps statistics.
    """

    data: Path | ImageSet
    cache: Path
    given: Path | ImageSet | None = None
    count: int = 2000
    size: int = 64
    options: dict[str, Any] = field(default_factory=dict)
    """How images on disk are opened."""

    def complete(self, method: Method, model: nn.Module, key: Key | None, progress: Progress | None) -> Method:
        """Return a method that takes source data with its statistics.

        `key` digests what is known here with all else that defines them; without it they are not kept, since the code
        of the method or of the model cannot be compared.
        """
        source = vars(method)["source"] or self._file(method)
        if source is not None:
            network = Network(model)
            return with_statistics(create(method, source=source), network, Fingerprint(network.model), progress)
        if key is None:
            return create(method, source=self._computed(method, model, progress))
        digest = key([fingerprint(self._images(method)[0]), self.count, self.size])
        place = self.cache / f"{method.name}-{digest}{STATISTICS}"
        if not place.exists():
            write_statistics(place, self._computed(method, model, progress))
        return create(method, source=read_statistics(place))

    def _computed(self, method: Method, model: nn.Module, progress: Progress | None) -> SourceStatistics:
        images, origin = self._images(method)
        found = prepare(model, SourceBatches(images, self.count, size=self.size), method, progress=progress)
        return dataclasses.replace(found, origin=origin)

    def _file(self, method: Method) -> SourceStatistics | None:
        """The statistics that were given in a file, if they are for this method."""
        if not isinstance(self.given, Path) or self.given.suffix != STATISTICS:
            return None
        found = read_statistics(self.given)
        return found if found.method == method.name else None

    def _images(self, method: Method) -> tuple[ImageSet, str]:
        """The images to use, and where they come from if nobody chose them."""
        if self.given is not None and not (isinstance(self.given, Path) and self.given.suffix == STATISTICS):
            return _opened(self.given, self.options), ""
        if isinstance(self.data, Path) and holds_corruptions(self.data):
            other = f", or leave out {method.name} ({method.without_source!r} works without)"
            advice = f"give clean images, or a file of `resitta prepare`, with source= (--source){other}"
            raise BadSetting(f"{method.name} needs source data, and {self.data} holds only corrupted images; {advice}")
        return _opened(self.data, self.options), OWN


def _opened(images: Path | ImageSet, options: dict[str, Any]) -> ImageSet:
    return open_images(images, **options) if isinstance(images, Path) else images
