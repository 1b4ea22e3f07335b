"""Corrupted versions of image sets: cached on disk and memory-mapped, or written in the layout of the public sets."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from resitta.checkpoint.atomic_write import atomic_write
from resitta.data.corruptions import CORRUPTIONS, corrupt, full_name, write_cifar_c, write_imagenet_c
from resitta.data.corruptions.write import Progress
from resitta.data.datasets import ArrayImages, ImageSet, open_images
from resitta.data.orders import Indices
from resitta.errors import BadData

PIXELS_AT_ONCE = 2**21


class Subset:
    """Some images of a set, in a given order."""

    def __init__(self, images: ImageSet, indices: Indices) -> None:
        self._images, self._indices = images, indices
        self.labels = images.labels[indices]
        self.classes = images.classes

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> torch.Tensor:
        """Return images by index, in the given order."""
        return self._images.read(self._indices[np.asarray(indices)])


def evenly(images: ImageSet, count: int | None) -> ImageSet:
    """Take every n-th image in label order, `count` in all, so that classes stay balanced."""
    if count is None or count >= len(images):
        return images
    by_label = np.argsort(images.labels, kind="stable")
    return Subset(images, np.sort(by_label[np.arange(count) * len(images) // count]))


def corrupted(
    images: ImageSet,
    name: str,
    severity: int,
    folder: Path,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> ArrayImages:
    """Return the corrupted images, memory-mapped from `folder`; the first call computes them, chunk by chunk."""
    path = folder / f"{full_name(name)}-{severity}-{seed}-{fingerprint(images)}.npy"
    if not path.exists():
        shape = (len(images), *images.read([0]).shape[1:])
        chunk = max(1, PIXELS_AT_ONCE // (shape[2] * shape[3]))
        with atomic_write(path, durable=False) as temporary:
            pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            for start in range(0, len(images), chunk):
                rows = np.arange(start, min(start + chunk, len(images)))
                pixels[rows] = corrupt(images.read(rows).to(device), name, severity, seed=seed).cpu().numpy()
                if progress:
                    progress(start, len(images))
            pixels.flush()
    if progress:
        progress(len(images), len(images))
    try:
        cached = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read ({error}); remove it to have it made again") from error
    return ArrayImages(cached, images.labels, classes=images.classes, origin=str(path))


def fingerprint(images: ImageSet) -> str:
    """A short digest of the labels and a few images of a set."""
    some = images.read(np.unique(np.linspace(0, len(images) - 1, 8).astype(np.int64)))
    return hashlib.sha256(images.labels.tobytes() + some.numpy().tobytes()).hexdigest()[:12]


def write_corrupted(
    data: str | Path,
    out: str | Path,
    *,
    layout: Literal["arrays", "folders"] = "arrays",
    corruptions: Sequence[str] = CORRUPTIONS,
    size: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> None:
    """Corrupt the images at `data` at severities 1 to 5 and write them as the public sets are laid out.

    "arrays" is the layout of CIFAR-C, "folders" that of ImageNet-C. Images of a folder or zip are resized to `size`.
    `progress(what, done, total)` is called while images are written. Existing files are kept.
    """
    images = open_images(data, **({} if size is None else {"size": size}))
    options: dict[str, Any] = {"corruptions": corruptions, "seed": seed, "device": device, "progress": progress}
    if layout == "arrays":
        pixels = images.read(range(len(images))).permute(0, 2, 3, 1).contiguous().numpy()
        write_cifar_c(out, pixels, images.labels, **options)
    else:
        names = [f"{label:05d}/{index:08d}.JPEG" for index, label in enumerate(images.labels.tolist())]
        pictures = [images.read([index])[0].permute(1, 2, 0).numpy() for index in range(len(images))]
        write_imagenet_c(out, list(zip(names, pictures, strict=True)), **options)
