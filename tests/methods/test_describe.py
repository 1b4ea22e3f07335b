import dataclasses
import json

import pytest

import resitta
from resitta.method import get_method
from resitta.methods.describe import describe


@pytest.mark.parametrize("name", resitta.list_methods())
def test_every_built_in_method_is_fully_described(name: str) -> None:
    found = describe(get_method(name))
    assert found["name"] == name
    assert found["summary"]
    assert found["paper"] or name in ("source", "tide")  # these two are of no paper
    assert all(setting["meaning"] and setting["type"] for setting in found["settings"])
    assert json.loads(json.dumps(found)) == found


def test_settings_have_type_range_default_and_meaning() -> None:
    settings = {setting["name"]: setting for setting in describe(resitta.methods.ResiTTA)["settings"]}
    assert settings["eta"]["type"] == "number"
    assert settings["eta"]["range"] == "0 to 0.5"
    assert settings["eta"]["default"] == 0.01
    assert "alignment" in settings["eta"]["meaning"]
    assert settings["norm"]["type"] == "resibn, rbn or adbn"
    assert settings["strong_view"]["type"] == "function or none"
    assert describe(resitta.methods.ResiTTA)["presets"]["imagenet"] == {"eta": 0.05}


def test_a_method_of_ones_own_needs_no_words() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(resitta.Method):
        rate: float
        sizes: tuple[int, ...] = dataclasses.field(default_factory=tuple)
        view: object = max

    found = describe(Mine)  # type: ignore[type-abstract]
    settings = {setting["name"]: setting for setting in found["settings"]}
    assert settings["rate"] == {"name": "rate", "type": "number", "range": "", "default": "required", "meaning": ""}
    assert settings["sizes"]["default"] == ()
    assert settings["view"]["default"] == repr(max)
