"""Images: data sets, corruptions, and the order in which a stream brings them.

`resitta.data.fetch("cifar10c", "data")` downloads a public corrupted set. `resitta.data.write_corrupted` corrupts your
own images and writes them in the same layout.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resitta.data.corrupted import write_corrupted
    from resitta.data.download import fetch

__all__ = ["fetch", "write_corrupted"]
_HOMES = {"fetch": "download", "write_corrupted": "corrupted"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
