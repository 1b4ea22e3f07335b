"""CIFAR as it is published: the corrupted sets as .npy files, the clean test sets as pickled batches."""

from pathlib import Path

import numpy as np

from resitta.data.datasets.base import Array, ArrayImages, checked_severity
from resitta.data.datasets.pickles import read_batch
from resitta.errors import BadData, near

TEST_BATCHES = ("test_batch", "test", "cifar-10-batches-py/test_batch", "cifar-100-python/test")


class CifarC(ArrayImages):
    """One corruption of CIFAR-10-C or CIFAR-100-C at one severity, memory-mapped.

    `root` holds `<corruption>.npy`, five severities of n images one after the other, and `labels.npy` with
    5·n labels, or n that serve every severity. Severity s is rows (s-1)·n to s·n.

    >>> import tempfile
    >>> root = tempfile.TemporaryDirectory()
    >>> np.save(f"{root.name}/fog.npy", np.zeros((50, 32, 32, 3), np.uint8))
    >>> np.save(f"{root.name}/labels.npy", np.arange(50) % 10)
    >>> images = CifarC(root.name, "fog", 5)
    >>> len(images), images.classes, images.read([0, 1]).shape
    (10, 10, torch.Size([2, 3, 32, 32]))
    """

    def __init__(self, root: str | Path, corruption: str, severity: int, *, classes: int | None = None) -> None:
        level = checked_severity(severity)
        path = _corruption_file(Path(root), corruption)
        images = _map_npy(path, axes=4, kinds="u")
        labels = _map_npy(path.with_name("labels.npy"), axes=1, kinds="iu")
        count = len(images) // 5
        if count == 0 or len(images) != 5 * count:
            raise BadData(f"{path} holds {len(images)} images, not five severities of n; fetch it again.")
        if len(labels) == count:
            labels = np.tile(labels, 5)
        if len(labels) != len(images):
            found = f"{len(labels)} labels, not {count} or {5 * count}"
            raise BadData(f"{path.with_name('labels.npy')} holds {found}; fetch it again.")
        rows = slice((level - 1) * count, level * count)
        super().__init__(images[rows], labels[rows], classes=classes, origin=str(path))


class CifarBatches(ArrayImages):
    """The clean test images of CIFAR-10 or CIFAR-100 in the "python version" of the public archives.

    `root` is `cifar-10-batches-py`, `cifar-100-python` or the folder that holds one of them. The pickle is
    read without executing it.

    >>> import pickle, tempfile
    >>> root = tempfile.TemporaryDirectory()
    >>> batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 8]}
    >>> _ = (Path(root.name) / "test_batch").write_bytes(pickle.dumps(batch, protocol=3))
    >>> CifarBatches(root.name, classes=10).labels
    array([3, 8])
    """

    def __init__(self, root: str | Path, *, classes: int | None = None) -> None:
        path = _test_batch(Path(root))
        pixels, labels = read_batch(path)
        if pixels.ndim != 2 or pixels.shape[1] != 3 * 32 * 32:
            raise BadData(f"{path} has data of shape {pixels.shape} instead of N×3072; fetch it again.")
        super().__init__(pixels.reshape(-1, 3, 32, 32), labels, classes=classes, origin=str(path))


def find_batches(root: Path) -> list[Path]:
    """Return the pickled test batches under `root`."""
    return [root / name for name in TEST_BATCHES if (root / name).is_file()]


def _test_batch(root: Path) -> Path:
    found = find_batches(root)
    if len(found) == 1:
        return found[0]
    if found:
        raise BadData(f"{root} holds {found[0]} and {found[1]}; open the folder of one of them.")
    raise BadData(f"{root} holds no test batch; expected one of {', '.join(TEST_BATCHES)}.")


def _corruption_file(root: Path, corruption: str) -> Path:
    path = root / f"{corruption}.npy"
    if path.is_file():
        return path
    known = {file.stem for file in root.glob("*.npy")} - {"labels"}
    hint = near(corruption, known) if known else "Download it with fetch('cifar10c' or 'cifar100c', folder)."
    raise BadData(f"{path} does not exist. {hint}")


def _map_npy(path: Path, *, axes: int, kinds: str) -> Array:
    if not path.is_file():
        raise BadData(f"{path} does not exist; it belongs to the archive: unpack or fetch that again.")
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy reads the header as Python text: a damaged one can raise nearly anything
        raise BadData(f"{path} is not a whole .npy file ({error}); fetch it again.") from error
    if array.ndim != axes or array.dtype.kind not in kinds:
        found = f"{array.ndim}-d {array.dtype}"
        raise BadData(f"{path} holds a {found} array, not {axes}-d whole numbers; fetch it again.")
    return array
