import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from resitta import method as module
from resitta import methods
from resitta.errors import BadSetting, ResittaError, UnknownName
from resitta.method import Learner, Method, create, get_method, list_methods, register
from resitta.methods.source import SourceLearner
from resitta.settings import check_settings, setting
from resitta.training.network import Network


@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    """A method as a newcomer writes it."""

    presets: ClassVar[dict[str, dict[str, float]]] = {"fast": {"rate": 0.9, "decay": 0.1}}

    rate: float = setting(0.5, above=0)
    decay: float = 0.0

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        return SourceLearner(network)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> type[Mine]:
    """The newcomer's method under a name, for one test."""
    monkeypatch.setattr(module, "_methods", dict(module._methods))
    return register("mine")(Mine)


def test_the_methods_of_the_paper_are_listed_by_name() -> None:
    assert {"bn", "cotta", "lame", "note", "pl", "resitta", "rotta", "source", "tent"} <= set(list_methods())
    assert list_methods() == sorted(list_methods())
    classes = {getattr(methods, name) for name in methods.__all__}
    assert {get_method(name) for name in list_methods()} == classes
    assert all(get_method(name).name == name for name in list_methods())


@pytest.mark.parametrize("preset", [None, "cifar10", "cifar100", "imagenet"])
@pytest.mark.parametrize("name", list_methods())
def test_every_method_has_the_presets_of_the_paper(name: str, preset: str | None) -> None:
    method = create(name, preset=preset)
    assert type(method) is get_method(name)
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    assert {key: values[key] for key in method.presets.get(preset or "", {})} == method.presets.get(preset or "", {})


@pytest.mark.parametrize("name", list_methods())
def test_methods_are_frozen_documented_and_compare_by_value(name: str) -> None:
    method = create(name)
    assert method == create(name)
    assert hash(method) == hash(create(name))
    assert type(method).__doc__
    assert method.trains in ("none", "affine", "all")
    with pytest.raises(FrozenInstanceError):
        method.lr = 1.0  # type: ignore[attr-defined]


def test_registering_gives_a_name_once(registered: type[Mine]) -> None:
    assert registered is Mine
    assert "mine" in list_methods()
    assert get_method("mine") is Mine
    with pytest.raises(BadSetting, match=r"'mine' belongs to \S+Mine; choose another, or"):
        register("mine")(Mine)


def test_settings_come_after_the_preset(registered: type[Mine]) -> None:
    assert create("mine") == Mine()
    assert create("mine", preset="fast") == Mine(rate=0.9, decay=0.1)
    assert create("mine", preset="fast", rate=0.3) == Mine(rate=0.3, decay=0.1)


def test_a_given_method_keeps_what_is_not_changed(registered: type[Mine]) -> None:
    given = Mine(rate=0.2, decay=0.7)
    assert create(given) == given
    assert create(given, rate=0.3) == Mine(rate=0.3, decay=0.7)
    assert create(given, preset="fast", rate=0.3) == Mine(rate=0.3, decay=0.1)
    assert given == Mine(rate=0.2, decay=0.7)


def test_unknown_names_are_answered_with_near_ones(registered: type[Mine]) -> None:
    with pytest.raises(UnknownName, match=r"no method is called 'mind'. Did you mean 'mine'\?"):
        create("mind")
    with pytest.raises(UnknownName, match=r"mine has no setting 'rates'. Did you mean 'rate'\?"):
        create("mine", rates=0.3)
    with pytest.raises(UnknownName, match=r"mine has no preset 'slow'. Known: fast\."):
        create("mine", preset="slow")
    with pytest.raises(UnknownName, match="no setting"):
        create(Mine(), rates=0.3)


def test_bad_values_are_refused_however_they_come(registered: type[Mine]) -> None:
    with pytest.raises(BadSetting, match="rate must be > 0, found 0"):
        create("mine", rate=0)
    with pytest.raises(BadSetting, match="rate must be > 0, found 0"):
        create(Mine(), rate=0)


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
