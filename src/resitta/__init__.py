"""Test-time adaptation that does not degrade: 23 methods behind one call.

import resitta
adapter = resitta.adapt(model, "resitta")
logits = adapter(images)
"""

import importlib
import importlib.util
import typing

from resitta import _deprecated

if typing.TYPE_CHECKING:
    from resitta import bench, errors, methods
    from resitta.adapter import Adapter, adapt, load, recover
    from resitta.checkpoint.autosave import Autosave
    from resitta.checkpoint.source_data import prepare
    from resitta.conformance import check_method
    from resitta.errors import ResittaError
    from resitta.exports import Exported, export
    from resitta.fleets import Fleet, fleet
    from resitta.inputs.convert import images
    from resitta.inputs.video import video
    from resitta.memory.memory import Memory
    from resitta.method import Learner, Method, create, list_methods, register
    from resitta.monitor import events, guard, trackers
    from resitta.monitor.callbacks import Callback
    from resitta.monitor.guard import Guard
    from resitta.monitor.stats import BankStats, Stats
    from resitta.norm.resibn import ResiBN
    from resitta.norm.robust_bn import RobustBN
    from resitta.settings import setting
    from resitta.training.network import Network

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Autosave",
    "BankStats",
    "Callback",
    "Exported",
    "Fleet",
    "Guard",
    "Learner",
    "Memory",
    "Method",
    "Network",
    "ResiBN",
    "ResittaError",
    "RobustBN",
    "Stats",
    "adapt",
    "bench",
    "check_method",
    "create",
    "errors",
    "events",
    "export",
    "fleet",
    "guard",
    "images",
    "list_methods",
    "load",
    "methods",
    "prepare",
    "recover",
    "register",
    "setting",
    "trackers",
    "video",
]

# Public names are imported when they are first used, so that `resitta --help` need not wait for torch.
_HOMES = {
    "Adapter": "adapter",
    "Autosave": "checkpoint.autosave",
    "BankStats": "monitor.stats",
    "Callback": "monitor.callbacks",
    "Exported": "exports",
    "Fleet": "fleets",
    "Guard": "monitor.guard",
    "Learner": "method",
    "Memory": "memory.memory",
    "Method": "method",
    "Network": "training.network",
    "ResiBN": "norm.resibn",
    "ResittaError": "errors",
    "RobustBN": "norm.robust_bn",
    "Stats": "monitor.stats",
    "adapt": "adapter",
    "check_method": "conformance",
    "create": "method",
    "events": "monitor",
    "export": "exports",
    "fleet": "fleets",
    "guard": "monitor",
    "images": "inputs.convert",
    "list_methods": "method",
    "load": "adapter",
    "prepare": "checkpoint.source_data",
    "recover": "adapter",
    "register": "method",
    "setting": "settings",
    "trackers": "monitor",
    "video": "inputs.video",
}


def __getattr__(name: str) -> typing.Any:
    """Import a public name or a submodule when it is first used."""
    if name in _deprecated.NAMES:
        return _deprecated.find(name)
    if name in _HOMES:
        home = importlib.import_module(f"resitta.{_HOMES[name]}")
        found = getattr(home, name, None) or importlib.import_module(f"{home.__name__}.{name}")
        globals()[name] = found
        return found
    if name.startswith("_") or importlib.util.find_spec(f"resitta.{name}") is None:
        raise AttributeError(f"module 'resitta' has no attribute {name!r}")
    return importlib.import_module(f"resitta.{name}")


def __dir__() -> list[str]:
    """The public names, used or not."""
    return [*__all__, "__version__"]
