"""Test-time adaptation that does not degrade: ResiTTA and eight baselines behind one call.

import resitta
adapter = resitta.adapt(model, "resitta")
logits = adapter(images)
"""

import importlib
import importlib.util
import typing

if typing.TYPE_CHECKING:
    from resitta import bench, errors, events, guard, methods
    from resitta.adapter import Adapter, adapt
    from resitta.checks import check_method
    from resitta.errors import ResittaError
    from resitta.guard import Guard
    from resitta.method import Learner, Method
    from resitta.registry import create, list_methods, register
    from resitta.settings import setting
    from resitta.state.autosave import Autosave, recover
    from resitta.state.loading import load
    from resitta.stats import BankStats, Stats
    from resitta.watch import Watcher

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Autosave",
    "BankStats",
    "Guard",
    "Learner",
    "Method",
    "ResittaError",
    "Stats",
    "Watcher",
    "adapt",
    "bench",
    "check_method",
    "create",
    "errors",
    "events",
    "guard",
    "list_methods",
    "load",
    "methods",
    "recover",
    "register",
    "setting",
]

# Public names are imported when they are first used, so that `resitta --help` need not wait for torch.
_HOMES = {
    "Adapter": "adapter",
    "Autosave": "state.autosave",
    "BankStats": "stats",
    "Guard": "guard",
    "Learner": "method",
    "Method": "method",
    "ResittaError": "errors",
    "Stats": "stats",
    "Watcher": "watch",
    "adapt": "adapter",
    "check_method": "checks",
    "create": "registry",
    "list_methods": "registry",
    "load": "state.loading",
    "recover": "state.autosave",
    "register": "registry",
    "setting": "settings",
}


def __getattr__(name: str) -> typing.Any:
    """Import a public name or a submodule when it is first used."""
    if name in _HOMES:
        found = getattr(importlib.import_module(f"resitta.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    if name.startswith("_") or importlib.util.find_spec(f"resitta.{name}") is None:
        raise AttributeError(f"module 'resitta' has no attribute {name!r}")
    return importlib.import_module(f"resitta.{name}")


def __dir__() -> list[str]:
    """The public names, used or not."""
    return [*__all__, "__version__"]
