import dataclasses
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import pytest
import torch

from resitta import methods, registry
from resitta.errors import BadSetting, UnknownName
from resitta.method import Learner, Method
from resitta.methods.source import SourceLearner
from resitta.registry import create, get_method, list_methods, register
from resitta.settings import setting
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
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    return register("mine")(Mine)


def test_the_methods_of_the_paper_are_listed_by_name() -> None:
    assert list_methods() == ["bn", "cotta", "lame", "note", "pl", "resitta", "rotta", "source", "tent"]
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
    with pytest.raises(BadSetting, match="'mine' belongs to Mine; choose another"):
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
