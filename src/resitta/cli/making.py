"""What the data commands do."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resitta.data.corruptions import frost_texture_source, full_name, write_cifar_c, write_imagenet_c
from resitta.data.datasets import ImageSet, open_images
from resitta.data.download import fetch
from resitta.terminal import Bar, bars, console


def run_corrupt(
    data: Path, out: Path, *, layout: str, corruptions: Sequence[str], size: int | None, seed: int, device: str
) -> None:
    """Write corrupted versions of a data set in a public layout."""
    images = open_images(data, **({} if size is None else {"size": size}))
    names = [full_name(name) for name in corruptions]
    if "frost" in names:
        console().print(f"frost uses the {frost_texture_source()} textures", highlight=False)
    with bars() as bar:
        tracks: dict[str, Bar] = {}

        def progress(what: str, done: int, total: int) -> None:
            tracks.setdefault(what, bar(what) if what not in tracks else tracks[what])(done, total)

        options: dict[str, Any] = {"corruptions": names, "seed": seed, "device": device, "progress": progress}
        if layout == "arrays":
            write_cifar_c(out, _pixels(images), images.labels, **options)
        else:
            write_imagenet_c(out, list(_pictures(images)), **options)
    console().print(f"written: {out}", highlight=False)


def run_fetch(name: str, root: Path) -> None:
    """Download a public set with a progress bar."""
    with bars() as bar:
        track = bar(name)
        folder = fetch(name, root, progress=lambda done, total: track(done, total or 0))
    console().print(f"unpacked: {folder}", highlight=False)


def _pixels(images: ImageSet) -> NDArray[np.uint8]:
    return images.read(range(len(images))).permute(0, 2, 3, 1).contiguous().numpy()


def _pictures(images: ImageSet) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    for index, label in enumerate(images.labels.tolist()):
        yield f"{label:05d}/{index:08d}.JPEG", images.read([index])[0].permute(1, 2, 0).numpy()
