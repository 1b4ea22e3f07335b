"""What a service runs, in words and numbers, for `/stats`."""

import dataclasses
from typing import Any

from resitta.adapter import Adapter
from resitta.methods.describe import plain

LONGEST = 80
"""Characters of a setting that is no number, such as a function."""


def facts(adapter: Adapter, model: str = "") -> dict[str, Any]:
    """The model as it was named (else its class), what differs from the defaults of method and guard, and the device.

    `guard` is None if there is none, and empty if all its settings are the defaults.

    >>> import resitta
    >>> from resitta.conformance import tiny_network
    >>> adapter = resitta.adapt(tiny_network(), "resitta", anchor=0.1, guard=True)
    >>> found = facts(adapter, "wrn16x1")
    >>> found["model"], found["settings"], found["guard"], found["device"], found["precision"]
    ('wrn16x1', {'anchor': 0.1}, {}, 'cpu', 'float32')
    """
    source = adapter.source
    computed = str(source.dtype).removeprefix("torch.")
    return {
        "model": model or type(source.model).__name__,
        "settings": changed(adapter.method),
        "guard": None if adapter.guard is None else changed(adapter.guard.guard),
        "device": str(source.device),
        "precision": computed if adapter.options.precision == "exact" else adapter.options.precision,
    }


def changed(settings: Any) -> dict[str, Any]:
    """The settings of a frozen dataclass that are not its defaults."""
    fields = {field.name: short(field.default) for field in dataclasses.fields(settings)}
    values = {name: short(getattr(settings, name)) for name in fields}
    return {name: value for name, value in values.items() if value != fields[name]}


def short(value: Any) -> Any:
    """A value as JSON has it; what has no form there as text that is not too long."""
    found = plain(value)
    return found[:LONGEST] if isinstance(found, str) else found
