from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal

import pytest
from torch import Tensor

from resitta.errors import BadSetting, ResittaError
from resitta.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Example:
    """One field of each kind a method may have."""

    rate: float = setting(0.5, above=0, at_most=1)
    share: float = setting(0.0, at_least=0)
    count: int = setting(3, at_least=1)
    flag: bool = False
    kind: Literal["one", "two"] = "one"
    view: Callable[[Tensor], Tensor] | None = None
    features: str | Callable[[Tensor], Tensor] | None = None
    free: float = -1.0

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    "good",
    [
        {"rate": 1},
        {"rate": 1e-9},
        {"share": 0},
        {"count": 1},
        {"flag": True},
        {"kind": "two"},
        {"view": abs},
        {"features": "layer4"},
        {"features": abs},
        {"features": None},
        {"free": -5},
    ],
    ids=str,
)
def test_values_that_fit_are_kept(good: dict[str, Any]) -> None:
    ((name, value),) = good.items()
    assert getattr(Example(**good), name) == value


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rate": 0}, "rate must be > 0, found 0; its default is 0.5"),
        ({"rate": 1.5}, "rate must be <= 1, found 1.5; its default is 0.5"),
        ({"rate": float("nan")}, "rate must be a finite number, found nan"),
        ({"share": -0.1}, "share must be >= 0, found -0.1"),
        ({"share": float("nan")}, "share must be a finite number, found nan"),
        ({"count": 0}, "count must be >= 1, found 0; its default is 3"),
        ({"count": 2.0}, "count must be a whole number, found 2.0"),
        ({"count": True}, "count must be a whole number, found True"),
        ({"rate": "fast"}, "rate must be a finite number, found 'fast'"),
        ({"rate": True}, "rate must be a finite number, found True"),
        ({"rate": None}, "rate must be a finite number, found None"),
        ({"flag": 1}, "flag must be True or False, found 1"),
        ({"kind": "three"}, "kind must be one of 'one', 'two', found 'three'; its default is 'one'"),
        ({"kind": ["one"]}, "kind must be one of 'one', 'two', found ['one']"),
        ({"view": "blur"}, "view must be callable or None, found 'blur'; its default is None"),
        ({"features": 3}, "features must be a string or callable or None, found 3"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_say_what_was_found_and_what_is_wanted(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting) as caught:
        Example(**bad)
    assert message in str(caught.value)
    assert isinstance(caught.value, ResittaError)
    assert isinstance(caught.value, ValueError)


def test_settings_are_frozen_and_named() -> None:
    with pytest.raises(FrozenInstanceError):
        Example().rate = 0.1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Example(0.1)  # type: ignore[call-arg]
