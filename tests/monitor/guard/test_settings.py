"""The settings of a guard check themselves."""

import dataclasses

import pytest
from torch import nn

from resitta import Guard, adapt
from resitta.errors import BadSetting


@pytest.mark.parametrize(
    "bad",
    [
        {"action": "explode"},
        {"window": 0},
        {"min_diversity": 0.5},
        {"max_entropy": 1.5},
        {"max_drift": 0.0},
        {"window": 2.5},
        {"screen": "yes"},
        {"max_sample_entropy": float("nan")},
        {"min_contrast": -1.0},
    ],
)
def test_values_out_of_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(BadSetting, match=next(iter(bad))):
        Guard(**bad)  # type: ignore[arg-type]


def test_settings_are_frozen_keywords() -> None:
    assert all(field.kw_only for field in dataclasses.fields(Guard))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Guard().window = 1  # type: ignore[misc]


def test_a_guard_is_asked_for_by_true_or_by_its_settings(model: nn.Module) -> None:
    assert adapt(model, "resitta").guard is None
    assert adapt(model, "resitta", guard=False).guard is None
    by_default, chosen = adapt(model, "resitta", guard=True).guard, adapt(model, "resitta", guard=Guard(window=9)).guard
    assert by_default is not None
    assert by_default.guard == Guard()
    assert chosen is not None
    assert chosen.guard.window == 9


def test_anything_else_is_refused(model: nn.Module) -> None:
    with pytest.raises(
        BadSetting, match="guard must be True, False or a resitta.monitor.guard.Guard, found 'rollback'"
    ):
        adapt(model, guard="rollback")  # type: ignore[arg-type]
