import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from resitta.errors import BadSetting, MissingExtra, UnknownName, UnsuitableModel
from resitta.models import Normalised, create, why_untrained


def toy(num_classes: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in with one model, which remembers how it was called."""
    calls: list[dict[str, object]] = []

    def create_model(name: str, **options: int) -> nn.Module:
        calls.append({"name": name, **options})
        model = toy(**{key: value for key, value in options.items() if key != "pretrained"})
        model.pretrained_cfg = {  # type: ignore[assignment]
            "mean": (0.5, 0.5, 0.5),
            "std": (0.25, 0.25, 0.25),
            "num_classes": 4,
        }
        return model

    stand_in = SimpleNamespace(
        create_model=create_model, is_model=lambda name: name == "toynet", list_models=lambda: ["toynet"]
    )
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    return SimpleNamespace(calls=calls)


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with one classifier that has two sets of weights, and one detector."""

    def weights(mean: float) -> SimpleNamespace:
        return SimpleNamespace(transforms=lambda: SimpleNamespace(mean=[mean] * 3, std=[0.25] * 3))

    published = {"V1": weights(0.25), "V2": weights(0.75)}
    models = SimpleNamespace()
    models.list_models = lambda module=None: ["toynet"] if module is models else ["toynet", "detector"]
    models.get_model_weights = lambda name: SimpleNamespace(
        DEFAULT=published["V2"], verify=lambda name: name and published[name]
    )
    models.get_model = lambda name, *, weights=None, num_classes=4: toy(num_classes)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))


def test_a_timm_model_takes_plain_images_and_options(timm: SimpleNamespace) -> None:
    model = create("timm:toynet", num_classes=5)
    assert isinstance(model, Normalised)
    assert timm.calls == [{"name": "toynet", "num_classes": 5}]
    x = torch.rand(2, 3, 2, 2)
    torch.testing.assert_close(model(x), model.model((x - 0.5) / 0.25))
    assert not model.training


@pytest.mark.parametrize(("options", "mean"), [({}, 0.75), ({"weights": "V1"}, 0.25)])
def test_a_torchvision_model_is_normalised_as_its_weights_say(
    torchvision: None, options: dict[str, str], mean: float
) -> None:
    model = create("torchvision:toynet", **options)
    assert isinstance(model, Normalised)
    x = torch.rand(2, 3, 2, 2)
    torch.testing.assert_close(model(x), model.model((x - mean) / 0.25))


def test_unknown_names_are_answered_with_near_ones(timm: SimpleNamespace, torchvision: None) -> None:
    with pytest.raises(UnknownName, match=r"timm has no model 'toynett'\. Did you mean 'toynet'\?"):
        create("timm:toynett")
    with pytest.raises(UnknownName, match="torchvision has no classifier 'detector'"):
        create("torchvision:detector")


@pytest.mark.parametrize(
    ("torch_version", "library", "command"),
    [
        ("2.13.0", "timm", "pip install timm torchvision"),
        ("2.13.0", "torchvision", "pip install torchvision"),
        ("2.13.0+cpu", "torchvision", "pip install torchvision --index-url https://download.pytorch.org/whl/cpu"),
    ],
)
def test_a_library_that_is_absent_names_the_command(
    monkeypatch: pytest.MonkeyPatch, torch_version: str, library: str, command: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: torch_version)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=f"cannot be imported: {library} is not installed; run: {command}$"):
        create(f"{library}:resnet50")


@pytest.mark.parametrize("error", ["RuntimeError", "ImportError"])
def test_a_library_that_breaks_at_import_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str) -> None:
    (tmp_path / "torchvision.py").write_text(f"raise {error}('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"does not work with torch .*nms does not exist\); run: pip install"):
        create("torchvision:resnet50")


OWN = """
from __future__ import annotations
import dataclasses
from torch import nn

@dataclasses.dataclass
class Settings:  # needs its module in sys.modules
    width: int = 3

def make_model(width: int = Settings().width) -> nn.Module:
    return nn.Linear(2, width)

def make_nothing() -> None:
    return None

ready = make_model()
number = 3
"""


@pytest.fixture(params=["file", "module"])
def own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The user's code, named by its file or by its module."""
    file = tmp_path / f"own_models_{request.param}.py"
    file.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return str(file) if request.param == "file" else file.stem


def test_a_function_of_the_users_own_makes_the_model(own: str, tmp_path: Path) -> None:
    model = create(f"{own}:make_model", width=5)
    assert isinstance(model, nn.Linear)
    assert model.out_features == 5
    torch.save(nn.Linear(2, 3).state_dict(), tmp_path / "c.pt")
    loaded = create(f"{own}:make_model", tmp_path / "c.pt")
    assert torch.equal(loaded.get_parameter("bias"), torch.load(tmp_path / "c.pt")["bias"])


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("make_modle", UnknownName, "has no function 'make_modle'. Did you mean 'make_model'?"),
        ("", UnknownName, "has no function ''"),
        ("make_nothing", UnsuitableModel, "make_nothing returned a NoneType; it must return"),
        ("ready", UnsuitableModel, "ready is a Linear; name a function"),
        ("number", UnsuitableModel, "number is a int; name a function"),
    ],
)
def test_what_is_no_model_function_is_refused(own: str, function: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        create(f"{own}:{function}")


def test_an_option_the_function_does_not_take_is_refused(own: str) -> None:
    with pytest.raises(BadSetting, match=r"make_model: .*'depth'; it takes width$"):
        create(f"{own}:make_model", depth=3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_package.models:make", "no module named 'no_such_package.models' to take"),
        ("torch.no_such_part:make", "no module named 'torch.no_such_part' to take"),
        ("no/such/file.py:make", "no file no/such/file.py"),
        (":make", "'' is not the name of a Python module"),
        ("..relative:make", "'..relative' is not the name"),
        ("timm.x y:make", "'timm.x y' is not the name"),
    ],
)
def test_code_that_is_not_there_is_refused(spec: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        create(spec)


def test_an_error_inside_the_users_code_is_shown_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_broken.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("own_broken", tmp_path / "own_broken.py"):
        with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
            create(f"{place}:make_model")


@pytest.mark.parametrize(
    ("name", "options", "trouble"),
    [
        ("timm:toynet", {"depth": 3}, "timm:toynet cannot be built with depth=3 (TypeError: "),
        (
            "torchvision:toynet",
            {"weights": "V3"},
            "torchvision:toynet cannot be built with weights=V3 (KeyError: 'V3')",
        ),
    ],
)
def test_options_a_library_does_not_take_are_named(
    timm: SimpleNamespace, torchvision: None, name: str, options: dict[str, Any], trouble: str
) -> None:
    with pytest.raises(BadSetting, match=re.escape(trouble)):
        create(name, **options)


def test_random_weights_are_told_from_trained_ones(timm: SimpleNamespace, torchvision: None) -> None:
    def untrained(name: str, checkpoint: str | None = None, **options: Any) -> str | None:
        return why_untrained(name, checkpoint, options, create(name, **options))

    assert "timm:toynet has random weights; give it pretrained=true" in str(untrained("timm:toynet"))
    assert "weights=DEFAULT" in str(untrained("torchvision:toynet"))
    assert untrained("timm:toynet", pretrained=False) is not None
    assert untrained("timm:toynet", pretrained=True) is None
    assert untrained("timm:toynet", pretrained=True, num_classes=4) is None
    assert "last layer" in str(untrained("timm:toynet", pretrained=True, num_classes=5))
    assert untrained("timm:toynet", "weights.pt", num_classes=5) is None
    assert untrained("torchvision:toynet", weights="V1") is None
    assert untrained("torchvision:toynet", "weights.pt") is None
    assert untrained("torch.nn:Identity") is None, "it may load weights itself"


def test_an_option_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\ndef make(name, checkpoint): return nn.Linear(name, checkpoint)"
    )
    model = create(f"{tmp_path}/own.py:make", name=2, checkpoint=3)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (2, 3)
