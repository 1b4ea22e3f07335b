"""Runs: a frozen protocol, the loop, the record it writes. `resitta.bench.run(model, images, methods)` does it all."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resitta.bench.api import run
    from resitta.bench.records import Records

__all__ = ["Records", "run"]


def __getattr__(name: str) -> Any:
    """Import what was asked for only now: its modules build on others of this package."""
    if name == "run":
        from resitta.bench.api import run  # noqa: PLC0415

        return run
    if name == "Records":
        from resitta.bench.records import Records  # noqa: PLC0415

        return Records
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
