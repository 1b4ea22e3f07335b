"""Settings of frozen dataclasses: declaration, validation, and parsing from the command line. Needs no torch."""

import ast
import dataclasses
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from resitta.errors import BadSetting

T = TypeVar("T")
BY_METHOD = "key=value or method.key=value"
"""What a setting for several methods looks like."""


def setting(
    default: T,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    doc: str = "",
) -> T:
    """Declare a setting with its default, the range it may take, and what it means: `resitta methods NAME` shows it."""
    known = {"at_least": at_least, "above": above, "at_most": at_most, "doc": doc}
    return dataclasses.field(default=default, metadata=known)


def check_settings(settings: Any) -> None:
    """Refuse a dataclass whose values do not fit their annotations or ranges."""
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        wrong = _type_trouble(value, hints[field.name]) or _range_trouble(value, field.metadata)
        if wrong:
            default = f"; its default is {field.default!r}"
            raise BadSetting(f"{field.name} must be {wrong}, found {value!r}{default}")


def _type_trouble(value: object, hint: Any) -> str | None:
    """Say what the annotation asks for, or None when the value fits it."""
    origin = get_origin(hint)
    if origin is Literal:
        choices = get_args(hint)
        return None if value in choices else f"one of {', '.join(map(repr, choices))}"
    if origin in (Union, UnionType):
        wrongs = [_type_trouble(value, option) for option in get_args(hint)]
        return None if None in wrongs else " or ".join(str(wrong) for wrong in wrongs)
    fits, wanted = _fits(value, origin or hint)
    return None if fits else wanted


def _fits(value: object, hint: Any) -> tuple[bool, str]:
    """Whether a value has a plain type, and that type in words; others are instances of a class, or functions.

    Of a protocol that can be checked, an object has all members.
    """
    if getattr(hint, "_is_runtime_protocol", False):
        members = sorted(name for name in vars(hint) if not name.startswith("_"))
        return isinstance(value, hint) and not isinstance(value, type), f"an object with {' and '.join(members)}"
    a_bool = isinstance(value, bool)
    plain = {
        bool: (a_bool, "True or False"),
        int: (isinstance(value, Integral) and not a_bool, "a whole number"),
        float: (isinstance(value, Real) and not a_bool and math.isfinite(value), "a finite number"),
        str: (isinstance(value, str), "a string"),
        tuple: (isinstance(value, tuple), "a tuple"),
        type(None): (value is None, "None"),
    }
    instance = isinstance(hint, type) and not getattr(hint, "_is_protocol", False) and isinstance(value, hint)
    words = "callable" if hint in (Any, Callable) else f"a {getattr(hint, '__name__', hint)}"
    return plain.get(hint, (instance or callable(value), words))


def _range_trouble(value: Any, bounds: Any) -> str | None:
    """Say which bound the value breaks; NaN breaks every bound."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    low, above, high = bounds.get("at_least"), bounds.get("above"), bounds.get("at_most")
    if low is not None and not value >= low:
        return f">= {low}"
    if above is not None and not value > above:
        return f"> {above}"
    if high is not None and not value <= high:
        return f"<= {high}"
    return None


def parse_pairs(pairs: Sequence[str], flag: str, form: str = "key=value") -> dict[str, Any]:
    """Read `key=value`: numbers, true, false, None, anything else as text.

    >>> parse_pairs(["pretrained=true", "num_classes=10", "weights=DEFAULT"], "--model-set")
    {'pretrained': True, 'num_classes': 10, 'weights': 'DEFAULT'}
    """
    found = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise BadSetting(f"{flag} takes {form}, found {pair!r}")
        found[key] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (ValueError, SyntaxError):
        return text
