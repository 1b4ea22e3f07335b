from collections.abc import Callable
from typing import Any, cast

import pytest
from torch import nn

import resitta
from resitta.errors import BadSetting, UnknownName, UnsuitableModel
from resitta.names import METHODS as PAPER_METHODS


def test_the_nine_methods_are_there() -> None:
    assert set(PAPER_METHODS) <= set(resitta.list_methods())


@pytest.mark.parametrize("preset", [None, "cifar10", "cifar100", "imagenet"])
def test_the_default_is_tide(model: nn.Module, preset: str | None) -> None:
    assert resitta.adapt(model, preset=preset).method == resitta.create("tide", preset=preset)


def test_a_fleet_is_of_the_papers_method(model: nn.Module) -> None:
    assert resitta.fleet(model).template.method == resitta.methods.ResiTTA()


def test_presets_and_settings_reach_the_method(model: nn.Module) -> None:
    adapter = resitta.adapt(model, "resitta", preset="imagenet", lr=5e-4)
    assert isinstance(adapter.method, resitta.methods.ResiTTA)
    assert (adapter.method.eta, adapter.method.lr) == (0.05, 5e-4)


def test_a_method_object_is_taken_as_it_is(model: nn.Module) -> None:
    method = resitta.methods.ResiTTA(eta=0.05, strong_view=lambda x: x)
    assert resitta.adapt(model, method).method is not None
    assert resitta.adapt(model, method).method.eta == 0.05  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m: resitta.adapt(m, "resita"), UnknownName, "no method is called 'resita'. Did you mean 'resitta'"),
        (lambda m: resitta.adapt(m, "tent", Lr=1), UnknownName, "tent has no setting 'Lr'. Did you mean 'lr'"),
        (lambda m: resitta.adapt(m, preset="cifar"), UnknownName, "no preset 'cifar'. Did you mean 'cifar10'"),
        (lambda m: resitta.adapt(m, "resitta", lr=-1.0), BadSetting, "lr must be > 0, found -1.0"),
        (lambda m: resitta.adapt(m, "resitta", eta=float("nan")), BadSetting, "eta must be a finite number, found nan"),
        (lambda m: resitta.adapt(m, "resitta", capacity=1.5), BadSetting, "capacity must be a whole number, found 1.5"),
        (
            lambda m: resitta.adapt(m, "resitta", norm="bn"),
            BadSetting,
            "norm must be one of 'resibn', 'rbn', 'adbn', found 'bn'",
        ),
        (lambda m: resitta.adapt(m, non_finite=cast(Any, "drop")), BadSetting, "non_finite must be 'raise' or 'skip'"),
        (lambda m: resitta.adapt(m.state_dict()), UnsuitableModel, "must be a torch.nn.Module, found OrderedDict"),
        (
            lambda m: resitta.adapt(nn.Linear(2, 2), "resitta"),
            UnsuitableModel,
            "resitta needs BatchNorm layers, and Linear has none; "
            "use method='cofa', 'cotta', 'lame', 'neo', 'source' or 't3a', which work",
        ),
    ],
)
def test_bad_requests_are_refused(
    model: nn.Module, make: Callable[[nn.Module], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        make(model)
