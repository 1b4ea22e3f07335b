"""Open a data set of any known layout."""

import inspect
from pathlib import Path
from typing import Any

from resitta.data.datasets.base import ImageSet
from resitta.data.datasets.cifar import CifarBatches, CifarC, find_batches
from resitta.data.datasets.files import is_picture
from resitta.data.datasets.folders import ImageFolder, ImageZip
from resitta.data.datasets.imagenet import ImageNetC
from resitta.errors import BadData, BadSetting

Kind = type[CifarC] | type[CifarBatches] | type[ImageNetC] | type[ImageFolder] | type[ImageZip]


def open_images(path: str | Path, **options: Any) -> ImageSet:
    """Open the data set at `path`, whichever of the known kinds it is; `options` go to that kind.

    CIFAR-C and ImageNet-C need `corruption=` and `severity=`; a folder or zip takes `size=`.

    >>> open_images("no/such/place")
    Traceback (most recent call last):
        ...
    resitta.errors.BadData: no/such/place does not exist; check the path.
    """
    place = Path(path)
    if not place.exists():
        raise BadData(f"{place} does not exist; check the path.")
    kind = _kind(place)
    signature = inspect.signature(kind)
    try:
        signature.bind(place, **options)
    except TypeError as error:
        takes = ", ".join(list(signature.parameters)[1:])
        raise BadSetting(f"{place} is opened as {kind.__name__}, which takes {takes}: {error}.") from None
    return kind(place, **options)


def holds_corruptions(path: str | Path) -> bool:
    """Whether a place holds corrupted sets (CIFAR-C, ImageNet-C) rather than one set of images."""
    return Path(path).is_dir() and _kind(Path(path)) in (CifarC, ImageNetC)


def _kind(place: Path) -> Kind:
    if place.suffix.lower() == ".zip":
        return ImageZip
    if any(place.glob("*.npy")):
        return CifarC
    if find_batches(place):
        return CifarBatches
    if any(item.is_dir() for item in place.glob("*/[1-5]/*")):
        return ImageNetC
    if any(is_picture(item.name) for item in place.glob("*/*")):
        return ImageFolder
    raise BadData(
        f"{place} is no known data set: it holds {_contents(place)}; expected CIFAR-C (fog.npy, labels.npy), "
        "CIFAR batches (test_batch), ImageNet-C (fog/5/n01440764/a.JPEG), class/name.png, or a .zip of those."
    )


def _contents(place: Path) -> str:
    if place.is_file():
        return "one file"
    names = sorted(item.name for item in place.iterdir())
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing"
