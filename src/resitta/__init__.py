"""Test-time adaptation that does not degrade: ResiTTA and eight baselines behind one call.

import resitta
adapter = resitta.adapt(model, "resitta")
logits = adapter(images)
"""

from resitta import errors, methods
from resitta.adapter import Adapter, adapt
from resitta.checks import check_method
from resitta.errors import ResittaError
from resitta.method import Learner, Method
from resitta.registry import create, list_methods, register
from resitta.settings import setting
from resitta.state.autosave import Autosave, recover
from resitta.state.loading import load
from resitta.stats import BankStats, Stats

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Autosave",
    "BankStats",
    "Learner",
    "Method",
    "ResittaError",
    "Stats",
    "adapt",
    "check_method",
    "create",
    "errors",
    "list_methods",
    "load",
    "methods",
    "recover",
    "register",
    "setting",
]
