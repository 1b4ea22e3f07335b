"""Old names work for one release and say what they are called now."""

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import _deprecated
from resitta.bench.api import choose
from resitta.checkpoint.format import seal
from resitta.checkpoint.io import describe
from resitta.methods.source import SourceLearner
from resitta.training.network import Network


@pytest.mark.parametrize(("old", "new"), _deprecated.MODULES.items())
def test_an_old_module_is_the_present_one(old: str, new: str) -> None:
    if importlib.util.find_spec(old).origin is not None:  # type: ignore[union-attr]
        pytest.skip(f"{old} has not moved yet")
    present = importlib.import_module(new)
    spec = present.__spec__
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}; the old name will be removed in 0.2"):
        assert importlib.import_module(old) is present
    assert present.__spec__ is spec
    sys.modules.pop(old, None)
    vars(resitta).pop(old.removeprefix("resitta."), None)


def test_modules_below_an_old_package_are_found() -> None:
    with pytest.warns(DeprecationWarning, match="resitta.checkpoint"):
        module = importlib.import_module("resitta.state.autosave")
    assert module.Autosave is resitta.Autosave
    for name in ("resitta.state.autosave", "resitta.state"):
        sys.modules.pop(name, None)
    vars(resitta).pop("state", None)


def test_other_modules_are_still_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("resitta.nothing")


def test_an_old_attribute_of_the_package_warns() -> None:
    with pytest.warns(DeprecationWarning, match="resitta.Watcher is now resitta.Callback"):
        assert resitta.Watcher is resitta.Callback
    with pytest.warns(DeprecationWarning, match="resitta.checks is now resitta.conformance"):
        assert resitta.checks is importlib.import_module("resitta.conformance")


def test_an_old_setting_works_wherever_settings_are_given(model: nn.Module) -> None:
    text = "the setting renew is now reset_on_shift; the old name will be removed in 0.2"
    made: list[Callable[[], Any]] = [
        lambda: resitta.adapt(model, "resitta", renew=2.0).method,
        lambda: resitta.create("resitta", renew=2.0),
        lambda: resitta.create(resitta.methods.ResiTTA(), renew=2.0),
        lambda: resitta.methods.ResiTTA(renew=2.0),  # type: ignore[call-arg]
        lambda: choose(["resitta"], settings={"renew": 2.0})[0],
        lambda: choose(["resitta"], settings={"resitta.renew": 2.0})[0],
    ]
    for make in made:
        with pytest.warns(DeprecationWarning, match=text) as caught:
            assert make() == resitta.methods.ResiTTA(reset_on_shift=2.0)
        assert [warning.filename for warning in caught] == [__file__]


def test_files_with_an_old_setting_load_silently(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta", reset_on_shift=2.0)
    document = {**describe(adapter), "state": adapter.state_dict()}
    document["settings"] = {"renew" if key == "reset_on_shift" else key: v for key, v in document["settings"].items()}
    (tmp_path / "old").write_bytes(seal(document))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resitta.load(model, tmp_path / "old").method == adapter.method
        adapter.restore(tmp_path / "old")


def test_watching_is_adding_a_callback(model: nn.Module) -> None:
    adapter, callback = resitta.adapt(model, "resitta"), resitta.Callback()
    with pytest.warns(DeprecationWarning, match="adapter.watch is now adapter.add_callback"):
        adapter.watch(callback)
    assert adapter.callbacks == [callback]


def test_learners_with_old_methods_are_told_and_work(model: nn.Module) -> None:
    with pytest.warns(DeprecationWarning, match="is now") as caught:

        class Old(SourceLearner):
            learns = True

            def absorb(self, images: Tensor, logits: Tensor) -> None:
                self.updates += 1

            def deployed(self) -> Network:
                return self.network

    names = [("absorb", "learn_from"), ("deployed", "exportable_network")]
    told = [f"{Old.__qualname__}.{old} is now {new}; the old name will be removed in 0.2" for old, new in names]
    assert [str(warning.message) for warning in caught] == told
    assert {warning.filename for warning in caught} == {__file__}
    learner = Old(Network(model))
    assert learner.step(torch.rand(2, 3, 8, 8)).shape == (2, 5)
    assert (learner.updates, learner.learns_from_predictions) == (1, True)
    assert learner.exportable_network() is learner.network
