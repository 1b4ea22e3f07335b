"""Test-time adaptation that does not degrade: ResiTTA and eight baselines behind one call.

import resitta
adapter = resitta.adapt(model, "resitta")
logits = adapter(images)
"""

from resitta import errors, events, guard, methods
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
