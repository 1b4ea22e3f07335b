"""Nested states: as JSON plus tensors, and compared. What JSON cannot express gets a key that begins with `$`.

>>> import torch
>>> tensors = {}
>>> tree = take_apart({"step": 3, "betas": (0.9, 0.999), "moments": {0: torch.ones(2)}}, tensors)
>>> tree
{'step': 3, 'betas': {'$tuple': [0.9, 0.999]}, 'moments': {'$dict': [[0, {'$tensor': 'moments/0'}]]}}
>>> put_together(tree, tensors)
{'step': 3, 'betas': (0.9, 0.999), 'moments': {0: tensor([1., 1.])}}
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resitta.checkpoint.fingerprint import raw_bytes
from resitta.errors import BadState


def take_apart(value: Any, tensors: dict[str, Tensor], place: str = "", known: dict[Any, str] | None = None) -> Any:
    """Return a JSON value; copies of the tensors are put into `tensors`, named by path, equal ones once.

    Recursive calls pass the path so far and the tensors already stored.
    """
    known = {} if known is None else known
    match value:
        case Tensor():
            return {"$tensor": _keep(value, tensors, known, place)}
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            items = [take_apart(item, tensors, f"{place}/{index}", known) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        case Mapping() if all(isinstance(key, str | int) for key in value):
            items = [[key, take_apart(item, tensors, f"{place}/{key}", known)] for key, item in value.items()]
            plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
            return dict(items) if plain else {"$dict": items}
        case _:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            wanted = "tensors, numbers, strings, and lists, tuples and dicts of them"
            raise BadState(f"{place} is a {kind}, which a state file cannot hold; keep {wanted}")


def put_together(tree: Any, tensors: Mapping[str, Tensor], used: set[str] | None = None) -> Any:
    """Undo `take_apart`; a tensor that is `used` already is copied, so that no two places share one."""
    used = set() if used is None else used
    match tree:
        case {"$tensor": name}:
            first = name not in used
            used.add(name)
            return tensors[name] if first else tensors[name].clone()
        case {"$tuple": items}:
            return tuple(put_together(item, tensors, used) for item in items)
        case {"$dict": items}:
            return {key: put_together(item, tensors, used) for key, item in items}
        case dict():
            return {key: put_together(item, tensors, used) for key, item in tree.items()}
        case list():
            return [put_together(item, tensors, used) for item in tree]
        case _:
            return tree


def _keep(tensor: Tensor, tensors: dict[str, Tensor], known: dict[Any, str], place: str) -> str:
    """Store a copy of a tensor under a free name, equal tensors once; return the name."""
    copied = tensor.detach().to("cpu", copy=True).contiguous()
    content = hashlib.sha256(raw_bytes(copied)).digest()
    key = copied.dtype, copied.shape, content
    if key not in known:
        name = place.lstrip("/")
        while name in tensors:  # keys that contain a slash
            name += "'"
        known[key], tensors[name] = name, copied
    return known[key]


def same(one: Any, other: Any) -> bool:
    """Compare values, nested ones included, bit for bit; NaN is the same as NaN.

    >>> same({"a": torch.ones(2)}, {"a": torch.ones(2)}), same(torch.ones(2), None)
    (True, False)
    """
    match one, other:
        case Tensor(), Tensor():
            alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
            return alike and (torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all()))
        case np.ndarray(), np.ndarray():
            return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
        case Mapping(), Mapping():
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(map(same, one, other))
        case float(), float():
            return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)
