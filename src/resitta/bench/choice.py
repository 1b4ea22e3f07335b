"""Which methods to run with which settings: by name, from a file, or as instances."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from resitta.bench.presets import METHODS
from resitta.errors import BadSetting, UnknownName, near
from resitta.method import Method, create, get_method, list_methods
from resitta.user_code import load_method

ALL = "all"
"""Stands for every registered method."""


def choose(
    methods: Sequence[str | Method], *, preset: str | None = None, settings: Mapping[str, Any] | None = None
) -> list[Method]:
    """Make the methods of a bench, each once. Instances are taken as they are: preset and settings go to names.

    >>> [type(method).__name__ for method in choose(["tent", "all"])][:3]
    ['Tent', 'Source', 'BatchNormAdapt']
    >>> choose(["resitta"], settings={"lr": 0.01, "resitta.eta": 0.05})[0].eta
    0.05
    """
    if isinstance(methods, str | Method):
        raise BadSetting(f"methods takes a list such as ['source', 'resitta'], found {methods!r}")
    loaded = [load_method(method) if isinstance(method, str) else method for method in methods]
    names = named(loaded)
    values = by_method(settings or {}, [name for name in names if isinstance(name, str)])
    made = [create(name, preset=preset, **values[name]) if isinstance(name, str) else _checked(name) for name in names]
    if not made:
        raise BadSetting("a bench needs at least one method; `resitta methods` lists them")
    return list(dict.fromkeys(made))


def named(methods: Sequence[str | Method]) -> list[str | Method]:
    """Replace "all" by the paper's methods, in its order, and the others that are registered."""
    every = [*METHODS, *(name for name in list_methods() if name not in METHODS)]
    return list(dict.fromkeys(one for method in methods for one in (every if method == ALL else [method])))


def by_method(settings: Mapping[str, Any], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Sort `key` and `method.key` by method; a plain key goes to every method that has it.

    >>> by_method({"lr": 0.01, "resitta.eta": 0.05}, ["tent", "resitta"])
    {'tent': {'lr': 0.01}, 'resitta': {'lr': 0.01, 'eta': 0.05}}
    """
    known = {name: [*(field.name for field in fields(get_method(name))), *get_method(name).renamed] for name in methods}
    found: dict[str, dict[str, Any]] = {name: {} for name in methods}
    for place, value in settings.items():
        method, _, key = place.rpartition(".")
        takers = [name for name in methods if key in known[name] and method in ("", name)]
        if not takers:
            every = [f"{name}.{k}" for name, keys in known.items() for k in keys]
            raise UnknownName(f"no method of this bench has the setting {place!r}. {near(place, every)}")
        for name in takers:
            found[name][key] = value
    return found


def _checked(method: Method) -> Method:
    if not isinstance(method, Method):
        raise BadSetting(f"a method is a name or an instance such as methods.Tent(), found a {type(method).__name__}")
    if not method.name:
        kind = type(method).__name__
        raise BadSetting(f"{kind} has no name to report it by; put @resitta.register('my-name') above the class")
    return method
