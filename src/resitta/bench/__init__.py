"""Benchmarks: `resitta.bench.run(model, images, methods)` compares methods, `reproduce` runs the paper's experiments.

protocol: how a stream is made. loop: the run loop and its metrics. record: what a run leaves. runner: jobs and their
records. executors: this process, several, or Ray. paper: the paper's numbers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resitta.bench.api import run
    from resitta.bench.experiments import reproduce
    from resitta.bench.record import Records

__all__ = ["Records", "reproduce", "run"]
_HOMES = {"Records": "record", "reproduce": "experiments", "run": "api"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
