"""Names and modules of resitta before 0.1: they work for one release, with a warning that names the new one."""

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

NAMES = {"Watcher": "resitta.Callback", "watch": "resitta.monitor.callbacks", "checks": "resitta.conformance"}
"""Attributes of the package."""
MODULES = {
    "resitta.watch": "resitta.monitor.callbacks",
    "resitta.events": "resitta.monitor.events",
    "resitta.guard": "resitta.monitor.guard",
    "resitta.stats": "resitta.monitor.stats",
    "resitta.checks": "resitta.conformance",
    "resitta.registry": "resitta.method",
    "resitta.user_code": "resitta.models.user_code",
    "resitta.state": "resitta.checkpoint",
    "resitta.streams": "resitta.data",
    "resitta.dist": "resitta.distributed",
}
"""Modules and packages, each with all that is in it under its present name."""
_NOT_THE_USER = {"resitta", "importlib", "abc"}


def warn(old: str, new: str) -> None:
    """Warn, at the line of the user's code that has it, that `old` is called `new` now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USER:
        frame = frame.f_back
    place, seen = frame.f_globals.get("__name__", "<unknown>"), frame.f_globals.setdefault("__warningregistry__", {})
    message = f"{old} is now {new}; the old name will be removed in 0.2"
    warnings.warn_explicit(message, DeprecationWarning, frame.f_code.co_filename, frame.f_lineno, place, seen)


def find(name: str) -> Any:
    """Return an attribute of the package by its old name."""
    new = NAMES[name]
    warn(f"resitta.{name}", new)
    if new == "resitta.Callback":
        return importlib.import_module("resitta.monitor.callbacks").Callback
    return importlib.import_module(new)


def rename(values: Mapping[str, Any], names: Mapping[str, str], *, quietly: bool = False) -> dict[str, Any]:
    """Return values by their new names; `names` maps old ones to these.

    >>> rename({"renew": 2, "lr": 0.1}, {"renew": "reset_on_shift"}, quietly=True)
    {'reset_on_shift': 2, 'lr': 0.1}
    """
    for old in names.keys() & values.keys() if not quietly else ():
        warn(f"the setting {old}", names[old])
    return {names.get(name, name): value for name, value in values.items()}


def rename_settings(cls: type, names: Mapping[str, str]) -> None:
    """Let a dataclass be made with the old names of its settings, too."""
    init: Callable[..., None] = vars(cls)["__init__"]

    @functools.wraps(init)
    def renaming(self: Any, **settings: Any) -> None:
        init(self, **rename(settings, names))

    setattr(cls, "__init__", renaming)  # noqa: B010  (mypy would refuse the assignment)


def rename_methods(cls: type, **names: str) -> None:
    """Give the methods that a class still writes under old names their new ones."""
    for old, new in names.items():
        if old in vars(cls):
            warn(f"{cls.__qualname__}.{old}", new)
            setattr(cls, new, vars(cls)[old])


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the present module under the old name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if _present(name) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to Python: what it makes is replaced below."""

    def exec_module(self, module: ModuleType) -> None:
        new = _present(module.__name__)
        assert new is not None  # or find_spec would have returned None
        warn(module.__name__, new)
        sys.modules[module.__name__] = importlib.import_module(new)


def _present(name: str) -> str | None:
    """The present name of an old module or of one below it.

    >>> _present("resitta.state.autosave")
    'resitta.checkpoint.autosave'
    """
    for old, new in MODULES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None


sys.meta_path.insert(0, _Finder())  # before Python's own, which would find modules below an old package twice
