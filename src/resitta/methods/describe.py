"""The description of a method as plain data: for `resitta methods`, its `--json`, and documents."""

import dataclasses
import json
import os
from collections.abc import Iterable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from resitta.method import COMMON, Method
from resitta.training.drift_detector import DriftDetector
from resitta.training.source_statistics import SourceStatistics

NEEDS = {
    "nothing": "any model",
    "norm": "normalisation layers of any kind",
    "batch_norm": "BatchNorm",
    "running_statistics": "BatchNorm with running statistics",
}
WORDS: dict[Any, str] = {
    **{float: "number", int: "whole number", bool: "true or false", str: "text", type(None): "none"},
    **{Iterable: "batches of images", os.PathLike: "path", SourceStatistics: "statistics"},
    DriftDetector: "drift detector",
}


def describe(method: type[Method]) -> dict[str, Any]:
    """Return name, summary, needs, paper, presets and settings of a method; everything fits into JSON.

    >>> from resitta.methods import Tent
    >>> found = describe(Tent)
    >>> found["name"], found["needs"], found["settings"][0]["range"]
    ('tent', 'normalisation layers of any kind', '> 0')
    """
    hints = get_type_hints(method)
    fields = sorted(dataclasses.fields(method), key=lambda field: field.name in COMMON)  # its own settings first
    return {
        "name": method.name,
        "summary": (method.__doc__ or "").partition("\n")[0],
        "needs": NEEDS[method.needs],
        "paper": method.paper,
        "presets": {name: dict(values) for name, values in method.presets.items()},
        "settings": [_setting(field, hints[field.name]) for field in fields],
    }


def _setting(field: "dataclasses.Field[Any]", hint: Any) -> dict[str, Any]:
    made = field.default_factory
    default = field.default if made is dataclasses.MISSING else made()
    return {
        "name": field.name,
        "type": type_words(hint),
        "range": range_words(**{key: field.metadata.get(key) for key in ("at_least", "above", "at_most")}),
        "default": plain(default),
        "meaning": field.metadata.get("doc", ""),
    }


def type_words(hint: Any) -> str:
    """Say in words what an annotation asks for.

    >>> type_words(int | None), type_words(Literal["affine", "all"])
    ('whole number or none', 'affine or all')
    """
    origin = get_origin(hint)
    if origin is Literal:
        return _either([str(choice) for choice in get_args(hint)])
    if origin in (Union, UnionType):
        return _either([type_words(option) for option in get_args(hint)])
    return WORDS.get(origin or hint, "tuple" if origin is tuple else "function")


def range_words(at_least: float | None, above: float | None, at_most: float | None) -> str:
    """Say in words which values are allowed.

    >>> range_words(0, None, 0.5), range_words(None, 0, None), range_words(None, None, None)
    ('0 to 0.5', '> 0', '')
    """
    if at_least is not None and at_most is not None:
        return f"{at_least} to {at_most}"
    bounds = {">=": at_least, ">": above, "<=": at_most}
    return ", ".join(f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None)


def _either(options: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(options[:-1]), options[-1])))


def plain(value: Any) -> Any:
    """A value as JSON has it; what has no form there, such as a function, as Python prints it."""
    if value is dataclasses.MISSING:
        return "required"
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value
