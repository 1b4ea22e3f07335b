"""Old names work for one release and say what they are called now."""

import importlib
import sys

import pytest

import resitta
from resitta import _deprecated


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
