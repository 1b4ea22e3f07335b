import torch
from torch import nn

import resitta
from resitta.serve.facts import facts


def test_only_what_differs_from_the_defaults_is_told(model: nn.Module) -> None:
    guard = resitta.Guard(max_drift=3.0)
    found = facts(resitta.adapt(model, "tide", capacity=32, precision="bf16", guard=guard), "my.py:model")
    assert found == {
        "model": "my.py:model",
        "settings": {"capacity": 32},
        "guard": {"max_drift": 3.0},
        "device": "cpu",
        "precision": "bf16",
    }


def test_without_a_name_and_a_guard(model: nn.Module) -> None:
    found = facts(resitta.adapt(model.double(), "source"))
    assert (found["model"], found["guard"], found["precision"]) == (type(model).__name__, None, "float64")


def test_a_setting_that_is_no_number_is_short_text(model: nn.Module) -> None:
    def strong_view(images: torch.Tensor) -> torch.Tensor:
        return images

    settings = facts(resitta.adapt(model, "resitta", strong_view=strong_view))["settings"]
    assert settings["strong_view"].startswith("<function")
    assert len(settings["strong_view"]) <= 80
