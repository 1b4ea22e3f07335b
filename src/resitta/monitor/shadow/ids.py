"""Numbers of images: which of them are compared, and how callers give them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadLabels

Ids = NDArray[np.int64]


def chosen(ids: range, share: float, seed: int) -> NDArray[np.bool_]:
    """Which images are compared: those whose numbers, scrambled by SplitMix64, fall below the share.

    Pseudo-random, since every twentieth image of twenty cameras in turn would be of one camera.

    >>> round(float(chosen(range(100_000), 0.05, seed=0).mean()), 2)
    0.05
    """
    numbers = np.arange(ids.start, ids.stop, dtype=np.uint64) + np.uint64(1)
    x = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)  # wraps around
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    below: NDArray[np.bool_] = ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) < share * 2.0**53
    return below


def whole_numbers(values: Any, name: str) -> Ids:
    """Read ids or labels from a list, a range, an array or a tensor of whole numbers.

    >>> whole_numbers(range(2, 4), "ids"), whole_numbers([], "ids")
    (array([2, 3]), array([], dtype=int64))
    """
    found = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    try:
        found = np.asarray(found if isinstance(found, np.ndarray) else list(found))
    except (TypeError, ValueError):
        raise BadLabels(f"{name} must be a list, an array or a tensor, found a {type(values).__name__}") from None
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise BadLabels(f"{name} must be one whole number per image, found {found.dtype} of shape {found.shape}")
    return found.astype(np.int64)
