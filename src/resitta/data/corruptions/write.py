"""Write corrupted sets to disk in the layouts of the public sets.

Files are written atomically and existing files are kept, so repeating an interrupted call completes it.
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from resitta.checkpoint.atomic_write import atomic_write
from resitta.data.corruptions.api import CORRUPTIONS, corrupt, full_name
from resitta.errors import BadData, BadSetting, require

Pixels: TypeAlias = NDArray[np.uint8]
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being written, how many images are done, and how many there will be."""
SEVERITIES = (1, 2, 3, 4, 5)


def write_cifar_c(
    root: str | Path,
    images: Pixels,
    labels: ArrayLike,
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    seed: int = 0,
    device: str = "cpu",
    chunk: int = 500,
    progress: Progress | None = None,
) -> None:
    """Write `<corruption>.npy` with all five severities one after the other, and `labels.npy` to match.

    Takes N×H×W×3 uint8 images; each file holds 5N×H×W×3, with severity s in rows (s-1)·N to s·N.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     write_cifar_c(root, np.zeros((2, 32, 32, 3), np.uint8), [7, 8], corruptions=["fog"])
    ...     np.load(f"{root}/fog.npy").shape, np.load(f"{root}/labels.npy").tolist()
    ((10, 32, 32, 3), [7, 8, 7, 8, 7, 8, 7, 8, 7, 8])
    """
    _check_chunk(chunk)
    _check_images(images)
    every_label = np.tile(np.asarray(labels), len(SEVERITIES))
    if every_label.shape != (len(SEVERITIES) * len(images),):
        raise BadData(f"{len(images)} images need as many labels, found shape {np.shape(labels)}")
    names = [full_name(name) for name in corruptions]
    folder = Path(root)
    for name in names:
        path = folder / f"{name}.npy"
        if not path.exists():
            _write_array(path, images, name, seed=seed, device=device, chunk=chunk, progress=progress)
    small = every_label.max() < 256  # the public files hold bytes
    every_label = every_label.astype(np.uint8 if small else np.int64)
    with atomic_write(folder / "labels.npy", durable=False) as path, path.open("wb") as file:
        np.save(file, every_label)


def _write_array(
    path: Path, images: Pixels, name: str, *, seed: int, device: str, chunk: int, progress: Progress | None
) -> None:
    """Write one corruption of the images at all severities, `chunk` images at a time."""
    shape = (len(SEVERITIES) * len(images), *images.shape[1:])
    with atomic_write(path, durable=False) as unfinished:
        file, done = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.uint8, shape=shape), 0
        for severity, start in product(SEVERITIES, range(0, len(images), chunk)):
            part = _corrupted(images[start : start + chunk], name, severity, seed=seed, device=device)
            file[done : done + len(part)] = part
            done += len(part)
            if progress is not None:
                progress(path.stem, done, len(file))
        file.flush()


def write_imagenet_c(
    root: str | Path,
    images: Sequence[tuple[str, Pixels]],
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    device: str = "cpu",
    chunk: int = 16,
    progress: Progress | None = None,
) -> None:
    """Write `<corruption>/<severity>/<wnid>/<name>.JPEG`, with the JPEG quality of the public set (85).

    Takes pairs of a path such as "n01440764/ILSVRC2012_val_00000293.JPEG" and an H×W×3 uint8 image, all of one
    size (the public set: 224×224). They are read in order, `chunk` at a time, so `images` may load them lazily.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     pairs = [("n01440764/a.JPEG", np.zeros((32, 32, 3), np.uint8))]
    ...     write_imagenet_c(root, pairs, corruptions=["fog"], severities=[5])
    ...     Path(root, "fog", "5", "n01440764", "a.JPEG").exists()
    True
    """
    pillow = require("PIL.Image", "bench")
    names = [full_name(name) for name in corruptions]
    _check_chunk(chunk)
    for start in range(0, len(images), chunk):
        pairs = [images[i] for i in range(start, min(start + chunk, len(images)))]
        batch = _stacked(pairs)
        for name, severity in product(names, severities):
            paths = [Path(root, name, str(severity), path) for path, _ in pairs]
            if not all(path.exists() for path in paths):
                corrupted = _corrupted(batch, name, severity, seed=seed, device=device)
                for path, image in zip(paths, corrupted, strict=True):
                    with atomic_write(path, durable=False) as unfinished:
                        pillow.fromarray(image).save(unfinished, "JPEG", quality=85, optimize=True)
        if progress is not None:
            progress("images", start + len(pairs), len(images))


def _stacked(pairs: Sequence[tuple[str, Pixels]]) -> Pixels:
    first_path, first = pairs[0]
    for path, image in pairs:
        if image.shape != first.shape:
            raise BadData(f"{path} is {image.shape} but {first_path} is {first.shape}; bring all to one size")
    batch = np.stack([image for _, image in pairs])
    _check_images(batch)
    return batch


def _corrupted(images: Pixels, name: str, severity: int, *, seed: int, device: str) -> Pixels:
    batch = torch.from_numpy(np.ascontiguousarray(images)).to(device).permute(0, 3, 1, 2)
    corrupted: Pixels = corrupt(batch, name, severity, seed=seed).permute(0, 2, 3, 1).cpu().numpy()
    return corrupted


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise BadSetting(f"chunk must be at least 1, not {chunk}")


def _check_images(images: Pixels) -> None:
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
        raise BadData(f"corruptions need uint8 images N×H×W×3, found {images.shape} of {images.dtype}")
