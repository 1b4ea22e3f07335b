"""Finds state of a learner that its `state_dict` loses, by comparing an adapter with a restored one.

Attributes that a module leaves out of its copies (`__getstate__`) are caches and do not count.
"""

import dataclasses
import random
from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from resitta.checkpoint.tree import same

INTERNAL = frozenset(vars(nn.Module()))
"""Attributes of every module of torch."""
PLAIN = (bool, int, float, complex, str, bytes, np.generic, set, frozenset)
MISSING = object()
"""Stands for None and for anything without state, such as a function."""
SAVE = "return it from get_extra_state and take it back in set_extra_state"
CHANGES = "it changes while the learner runs and is not saved"


@dataclasses.dataclass(frozen=True)
class Held:
    """A value, and the attribute of the module through which it is reached."""

    owner: str
    """The class and the attribute, such as `TentLearner.network`."""
    attribute: Any
    """What the attribute holds: the value itself, or what the value is somewhere inside of."""
    value: Any
    transient: bool = False
    """Whether it is a buffer that was registered with `persistent=False`."""

    def __str__(self) -> str:
        """Explain why it is lost, and what to do."""
        kind, remedy = self._advice()
        return f"{self.owner} is {kind}: {CHANGES}; {remedy}"

    def _advice(self) -> tuple[str, str]:
        name, kind = self.owner.rpartition(".")[2], type(self.attribute).__name__
        if self.transient:
            return "a buffer with persistent=False", "leave that out"
        match self.attribute:
            case Tensor():
                return "a plain tensor", f"register it with self.register_buffer({name!r}, ...)"
            case torch.optim.Optimizer():
                return f"torch's own {kind}", "use one of resitta.training.optimizer, which save their state"
            case torch.Generator() | np.random.Generator() | random.Random():
                return "a random generator of its own", "draw from the generator that start() is given"
        if isinstance(self.attribute, PLAIN):
            return f"a plain {kind}", SAVE
        inside = " of tensors" if isinstance(self.value, Tensor) else ""
        advice = f"register its tensors as buffers, its modules in a torch.nn.ModuleList, or {SAVE}" if inside else SAVE
        return f"a plain {kind}{inside}", advice


def lost(running: nn.Module, restored: nn.Module, begun: nn.Module, *, deep: bool = False) -> list[Held]:
    """State that has changed since a learner began and is missing in the one restored from its `state_dict`.

    `deep` includes flags and objects of any class, which may be derived from other state.

    >>> def learner(total: float) -> nn.Module:
    ...     module = nn.Identity()
    ...     module.total = torch.tensor(total)
    ...     return module
    >>> str(lost(learner(3.0), learner(0.0), learner(0.0))[0]).partition(";")[0]
    'Identity.total is a plain tensor: it changes while the learner runs and is not saved'
    """
    now, then, first = (held(module, deep=deep) for module in (running, restored, begun))
    paths = dict.fromkeys([*now, *then])
    values = [[found[path].value if path in found else MISSING for found in (now, then, first)] for path in paths]
    owners: dict[str, Held] = {}
    for path, (a, b, c) in zip(paths, values, strict=True):
        flag = isinstance(a, bool) and isinstance(b, bool)
        if not same(a, b) and not same(a, c) and (deep or not flag):
            found = now.get(path) or then[path]
            owners.setdefault(found.owner, found)
    return sorted(owners.values(), key=lambda found: not isinstance(found.value, Tensor))


def held(module: nn.Module, *, deep: bool = False) -> dict[str, Held]:
    """Everything a module holds, by its path."""
    return dict(_Walk(deep).module(module, ""))


class _Walk:
    """Walks modules, lists, dicts and dataclasses, and with `deep` other objects, once each."""

    def __init__(self, deep: bool) -> None:
        self.deep = deep
        self.seen: dict[int, Any] = {}  # holding them keeps their ids from being used again

    def module(self, module: nn.Module, path: str) -> Iterator[tuple[str, Held]]:
        if not self._first(module):
            return
        name = type(module).__name__
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            transient = key in module._non_persistent_buffers_set
            if tensor is not None:
                yield f"{path}.{key}", Held(f"{name}.{key}", tensor, tensor, transient)
        for key, child in module._modules.items():
            if child is not None:
                yield from self.module(child, f"{path}.{key}")
        for key, value in _attributes(module).items():
            if key not in INTERNAL:
                yield from self.value(value, f"{path}.{key}", f"{name}.{key}", value)

    def value(self, value: Any, path: str, owner: str, attribute: Any) -> Iterator[tuple[str, Held]]:
        leaf = _leaf(value)
        if leaf is not MISSING:
            yield path, Held(owner, attribute, leaf)
        elif isinstance(value, nn.Module):
            for inner, found in self.module(value, path):
                yield inner, dataclasses.replace(found, owner=owner, attribute=attribute)
        elif self._first(value):
            for key, item in self._items(value).items():
                yield from self.value(item, f"{path}[{key!r}]", owner, attribute)

    def _items(self, value: Any) -> dict[Any, Any]:
        match value:
            case Mapping():
                return dict(value)
            case list() | tuple() | deque():
                return dict(enumerate(value))
        known = dataclasses.is_dataclass(value) or (self.deep and not isinstance(value, ModuleType))
        return _attributes(value) if known and not callable(value) else {}

    def _first(self, value: Any) -> bool:
        first = id(value) not in self.seen
        self.seen[id(value)] = value
        return first


def _leaf(value: Any) -> Any:
    """The comparable value of a leaf; MISSING for a container."""
    match value:
        case torch.Generator():
            return value.get_state()
        case np.random.Generator():
            return value.bit_generator.state
        case random.Random():
            return value.getstate()
        case torch.optim.Optimizer():
            return value.state_dict()
    return value if isinstance(value, (Tensor, np.ndarray, *PLAIN)) else MISSING


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes that a copy of an object would have, including slots."""
    try:
        state = value.__getstate__()
    except Exception:  # an object that cannot be copied holds nothing that could be saved
        return {}
    parts = state if isinstance(state, tuple) else (state,)
    return {str(key): item for part in parts if isinstance(part, dict) for key, item in part.items()}
