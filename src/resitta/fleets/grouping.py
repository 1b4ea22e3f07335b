"""Which images of a batch belong to which stream."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resitta.errors import BadSetting
from resitta.fleets.files import check_name


def grouped(streams: str | Sequence[str], count: int) -> tuple[Tensor, dict[str, slice]]:
    """The order that brings images of one stream together, and where in it each stream's images are.

    >>> grouped(["b", "a", "b"], 3)
    (tensor([0, 2, 1]), {'b': slice(0, 2, None), 'a': slice(2, 3, None)})
    """
    names = [streams] * count if isinstance(streams, str) else list(streams)
    if len(names) != count:
        raise BadSetting(f"there are {count} images and {len(names)} names of streams; name the stream of each image")
    places: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        places.setdefault(check_name(name) if name not in places else name, []).append(index)
    parts, order = {}, list[int]()
    for name, found in places.items():
        parts[name] = slice(len(order), len(order) + len(found))
        order += found
    return torch.tensor(order), parts
