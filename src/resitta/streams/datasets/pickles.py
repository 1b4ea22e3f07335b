"""Read CIFAR's pickled batches without running what a pickle may contain.

A pickle is a program that can import and call anything. Here the only names it can reach are two inert
stand-ins for numpy's array and dtype, so the worst that a hostile file can do is fail to load.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resitta.errors import BadData


class _DType:
    def __init__(self, name: str | bytes, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: meaningless for single bytes."""


class _Array:
    def __init__(self, *_: object) -> None:
        self.pixels: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        if dtype.name not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"its array has dtype {dtype.name!r} instead of uint8")
        self.pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs") from None


def read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Return the pixels (N×3072) and labels of one CIFAR batch; CIFAR-100 gives its fine labels."""
    try:
        with path.open("rb") as file:
            batch = _Unpickler(file, encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        labels = entries["fine_labels"] if "fine_labels" in entries else entries["labels"]
        return entries["data"].pixels, labels
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BadData(f"{path} is not a CIFAR batch ({error}); download it again.") from error
