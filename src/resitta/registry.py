"""The names of methods: `@register("mine")` once, and every listing, check and command knows it.

>>> "resitta" in list_methods()
True
>>> create("resitta", preset="imagenet").eta
0.05
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from resitta.errors import BadSetting, UnknownName, near
from resitta.method import Method

M = TypeVar("M", bound=type[Method])
_methods: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[M], M]:
    """Give a method class its public name; a name already taken is refused."""

    def decorate(cls: M) -> M:
        if name in _known():
            raise BadSetting(f"the name {name!r} belongs to {_methods[name].__qualname__}; choose another")
        cls.name = name
        _methods[name] = cls
        return cls

    return decorate


def list_methods() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(_known())


def forget(module: str) -> None:
    """Remove the names that a module registered, because it is about to run again."""
    for name in [name for name, cls in _methods.items() if cls.__module__ == module]:
        del _methods[name]


def get_method(name: str) -> type[Method]:
    """Return the class registered under a name."""
    known = _known()
    if name not in known:
        raise UnknownName(f"no method is called {name!r}. {near(name, known)}")
    return known[name]


def create(method: str | Method, *, preset: str | None = None, **settings: Any) -> Method:
    """Make a method from its name, or change settings of a given one; a preset comes before the settings."""
    if not isinstance(method, str | Method):
        raise BadSetting(f"a method is a name or an instance such as methods.Tent(), found a {type(method).__name__}")
    cls = get_method(method) if isinstance(method, str) else type(method)
    values = {} if preset is None else dict(_preset(cls, preset))
    values.update(settings)
    known = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in known:
            raise UnknownName(f"{cls.name} has no setting {key!r}. {near(key, known)}")
    return cls(**values) if isinstance(method, str) else dataclasses.replace(method, **values)


def _known() -> dict[str, type[Method]]:
    """All methods by name; the built-in ones register themselves when their package is imported."""
    importlib.import_module("resitta.methods")
    return _methods


def _preset(cls: type[Method], preset: str) -> dict[str, Any]:
    if not isinstance(preset, str):
        raise BadSetting(f"a preset is a name such as 'cifar10', found {preset!r}")
    if preset not in cls.presets:
        raise UnknownName(f"{cls.name} has no preset {preset!r}. {near(preset, cls.presets)}")
    return dict(cls.presets[preset])
