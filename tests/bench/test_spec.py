import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from resitta import user_code
from resitta.bench.protocol import Protocol
from resitta.bench.runner import weights_digest
from resitta.bench.sources import model_source
from resitta.bench.spec import Recipe, usable_device
from resitta.conformance import tiny_network
from resitta.data.datasets import ArrayImages
from resitta.errors import BadSetting
from resitta.models import create as create_model


def test_a_recipe_travels_and_opens_the_same_bench(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from resitta.conformance import tiny_network as make")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "fog.npy", rng.integers(0, 256, (50, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(50) % 5)
    torch.save(tiny_network().state_dict(), tmp_path / "weights.pt")
    recipe = Recipe(
        protocol=Protocol(corruptions=("fog",), per_domain=5),
        model=f"{tmp_path}/mine.py:make",
        data=tmp_path,
        checkpoint=tmp_path / "weights.pt",
        out=tmp_path / "out",
    )
    travelled = pickle.loads(pickle.dumps(recipe))
    assert travelled == recipe
    assert hash(travelled) == hash(recipe)
    bench = travelled.open()
    assert [len(images) for images in bench.sets.values()] == [5]
    source = bench.about.pop("model_source")
    assert source == model_source(str(recipe.model))["model_source"] is not None
    assert bench.about == {"model": recipe.model, "checkpoint": "weights.pt", "data": tmp_path.name}
    assert torch.equal(next(bench.model.parameters()), next(tiny_network().parameters()))


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(BadSetting, match="device 'cuda:99' cannot be used here"):
        usable_device("cuda:99")


def recipe(model: str | nn.Module, classes: int = 10, **more: Any) -> Recipe:
    rng = np.random.default_rng(0)
    images = ArrayImages(rng.integers(0, 256, (20, 32, 32, 3), np.uint8), np.arange(20) % classes)
    return Recipe(protocol=Protocol(corruptions=("clean",)), model=model, data=images, **({"out": Path("out")} | more))


def test_random_weights_are_named_and_recorded(tmp_path: Path) -> None:
    untrained = recipe("wrn16x1").open()
    torch.rand(1)
    again = recipe("wrn16x1").open()
    assert untrained.about["untrained"] is True
    assert untrained.warning.startswith("wrn16x1 has random weights; give it a checkpoint")
    assert weights_digest(untrained.model) == weights_digest(again.model), "so that all processes have the same"
    torch.save(untrained.model.state_dict(), tmp_path / "weights.pt")
    trained = recipe("wrn16x1", checkpoint=tmp_path / "weights.pt").open()
    assert not trained.warning
    assert "untrained" not in trained.about


def test_making_a_model_leaves_the_random_numbers_of_the_caller_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    recipe("wrn16x1").open()
    assert torch.equal(torch.rand(3), expected)


def test_options_of_the_model_are_part_of_the_identity() -> None:
    bench = recipe("wrn16x1", classes=4, model_options=(("classes", 4),)).open()
    assert bench.about["model_options"] == {"classes": 4}
    assert "model_options" not in recipe("wrn16x1").open().about


@pytest.mark.parametrize("classes", [4, 12])
def test_another_number_of_classes_is_refused(classes: int) -> None:
    words = rf"the model has 10 classes, the images have {classes}: make the model for {classes} \(--model-set"
    with pytest.raises(BadSetting, match=words) as caught:
        recipe("wrn16x1", classes=classes).open()
    assert ("ArrayImages(x, y, classes=10)" in str(caught.value)) == (classes < 10)


def test_classes_are_compared_before_any_image_is_corrupted(tmp_path: Path) -> None:
    wrong = replace(recipe("wrn16x1", classes=4, out=tmp_path), protocol=Protocol(corruptions=("fog",)))
    with pytest.raises(BadSetting, match="10 classes"):
        wrong.open()
    assert list(tmp_path.iterdir()) == []


def test_published_sets_are_compared_too(tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", np.zeros((50, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(50) % 7)
    with pytest.raises(BadSetting, match="the model has 10 classes, the images have 7"):
        Recipe(protocol=Protocol(corruptions=("fog",)), model="wrn16x1", data=tmp_path, out=tmp_path).open()


def test_a_part_of_the_classes_may_be_declared() -> None:
    images = ArrayImages(np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 2, 3], classes=10)
    assert replace(recipe("wrn16x1"), data=images).open().sets


def test_a_module_is_used_as_it_is(model: nn.Module) -> None:
    model.train()
    bench = recipe(model, classes=5).open()
    assert bench.model is model
    assert model.training
    assert (bench.about["model"], bench.about["data"], bench.warning) == ("Sequential", "ArrayImages", "")
    assert bench.about["model_source"] == model_source(model)["model_source"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint": Path("weights.pt")}, "checkpoint belongs to a model given by name"),
        ({"model_options": (("classes", 3),)}, "model_options belongs to a model given by name"),
        ({"size": 32}, "size belongs to images on disk"),
    ],
)
def test_options_that_say_nothing_are_refused(model: nn.Module, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        recipe(model, **options)


def test_a_module_of_a_users_file_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from torch import nn\nclass Own(nn.Sequential): pass\n"
    code += "from resitta.conformance import tiny_network\ndef make(): return Own(*tiny_network())"
    (tmp_path / "mine.py").write_text(code)
    given = recipe(create_model(f"{tmp_path}/mine.py:make"), classes=5)
    parcel = pickle.dumps(given)
    for name in user_code._loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(user_code, "_loaded", {})
    assert pickle.loads(parcel).open().about == given.open().about
