"""Making what is served; `tests/cli/test_serve.py` has the refusals of the command."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.tools import OWN_METHOD
from torch import nn

from resitta.errors import BadSetting
from resitta.serve.launch import make_adapter


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with one model, whose pretrained weights know four classes."""

    def create_model(name: str, pretrained: bool = False, num_classes: int = 4) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 8, 2), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, num_classes))
        model.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "num_classes": 4}  # type: ignore[assignment]
        return model

    library = SimpleNamespace(create_model=create_model, is_model="toynet".__eq__, list_models=lambda: ["toynet"])
    monkeypatch.setitem(sys.modules, "timm", library)


def test_settings_reach_the_method() -> None:
    adapter = make_adapter(
        "wrn16x1",
        None,
        untrained=True,
        method="resitta",
        preset="imagenet",
        settings={"lr": 0.5},
        seed=3,
        guard=True,
        device="cpu",
    )
    assert (adapter.method.lr, adapter.method.eta, adapter.options.seed) == (0.5, 0.05, 3)  # type: ignore[attr-defined]
    assert adapter.guard is not None


@pytest.mark.parametrize(
    ("method", "settings", "anchor"), [("resitta", {}, 0.1), ("resitta", {"anchor": 0}, 0.0), ("rotta", {}, None)]
)
def test_a_service_is_anchored_unless_told_otherwise(
    method: str, settings: dict[str, float], anchor: float | None
) -> None:
    adapter = make_adapter("wrn16x1", method=method, settings=settings, untrained=True)
    assert getattr(adapter.method, "anchor", None) == anchor


def test_a_method_of_ones_own_is_served(tmp_path: Path, timm: None) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD.replace("FACTOR", "-1"))
    given: dict[str, Any] = {"preset": None, "seed": 0, "guard": False, "device": "cpu", "untrained": True}
    adapter = make_adapter("timm:toynet", None, method=f"{tmp_path}/own.py:mine", settings={"rate": 0.5}, **given)
    assert (adapter.method.name, vars(adapter.method)["rate"]) == ("mine", 0.5)


def test_a_new_last_layer_is_not_served_by_mistake(timm: None) -> None:
    given: dict[str, Any] = {"method": "source", "preset": None, "settings": {}, "seed": 0, "guard": False}
    options = {"pretrained": True, "num_classes": 7}
    with pytest.raises(BadSetting, match=r"the last layer of timm:toynet has random weights, .* know 4 classes"):
        make_adapter("timm:toynet", None, **given, device="cpu", model_options=options)
    adapter = make_adapter("timm:toynet", None, **given, device="cpu", model_options=options, untrained=True)
    assert adapter(torch.rand(1, 3, 2, 2)).shape == (1, 7)
