"""Nested states as JSON and tensors: what JSON cannot say is marked with a key that begins with `$`.

>>> import torch
>>> tensors = {}
>>> tree = take_apart({"step": 3, "betas": (0.9, 0.999), "moments": {0: torch.ones(2)}}, tensors)
>>> tree
{'step': 3, 'betas': {'$tuple': [0.9, 0.999]}, 'moments': {'$dict': [[0, {'$tensor': 'moments/0'}]]}}
>>> put_together(tree, tensors)
{'step': 3, 'betas': (0.9, 0.999), 'moments': {0: tensor([1., 1.])}}
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from resitta.errors import BadState


def take_apart(value: Any, tensors: dict[str, Tensor], place: str = "") -> Any:
    """Return a JSON value; copies of the tensors go into `tensors`, named after their places."""
    match value:
        case Tensor():
            return {"$tensor": _keep(value, tensors, place)}
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            items = [take_apart(item, tensors, f"{place}/{index}") for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        case Mapping() if all(isinstance(key, str | int) for key in value):
            items = [[key, take_apart(item, tensors, f"{place}/{key}")] for key, item in value.items()]
            plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
            return dict(items) if plain else {"$dict": items}
        case _:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            wanted = "tensors, numbers, strings, and lists, tuples and dicts of them"
            raise BadState(f"{place} is a {kind}, which a state file cannot hold; keep {wanted}")


def put_together(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `take_apart`."""
    match tree:
        case {"$tensor": name}:
            return tensors[name]
        case {"$tuple": items}:
            return tuple(put_together(item, tensors) for item in items)
        case {"$dict": items}:
            return {key: put_together(item, tensors) for key, item in items}
        case dict():
            return {key: put_together(item, tensors) for key, item in tree.items()}
        case list():
            return [put_together(item, tensors) for item in tree]
        case _:
            return tree


def _keep(tensor: Tensor, tensors: dict[str, Tensor], place: str) -> str:
    """Store a tensor of its own memory under a name that is not taken."""
    name = place.lstrip("/")
    while name in tensors:  # keys that contain a slash
        name += "'"
    tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return name
