import dataclasses
import io
import os
import random
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resitta.models
from resitta.errors import BadData, BadSetting, UnknownName
from resitta.models import MODELS, create, list_models

TESTBEDS = Path(os.environ.get("RESITTA_BEDS", Path(__file__).parents[2] / "../shared/beds"))
RESNET50: dict[str, object] = {
    "stride_in_1x1": True,
    "bn_eps": 1e-3,
    "mean": (123.68 / 255, 116.779 / 255, 103.939 / 255),
    "std": (1 / 255,) * 3,
}


NETWORKS = ("WideResNet", "ResNeXt29", "ResNet50", "ResNet26GN", "VisionTransformer")


def file_of_testbed(name: str) -> Path:
    if not (TESTBEDS / name).is_file():
        pytest.skip(f"{name} is not at hand")
    return TESTBEDS / name


def images_of_testbed(archive: Path, count: int) -> tuple[Tensor, Tensor]:
    """A random sample of a zip file whose folders are the classes, in sorted order."""
    image = pytest.importorskip("PIL.Image")
    with zipfile.ZipFile(archive) as files:
        names = sorted(files.namelist())
        classes = sorted({name.split("/")[0] for name in names})
        chosen = random.Random(0).sample(names, count)
        pixels = [np.asarray(image.open(io.BytesIO(files.read(name))).convert("RGB")) for name in chosen]
    labels = torch.tensor([classes.index(name.split("/")[0]) for name in chosen])
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255, labels


class Case(NamedTuple):
    """Weights, images of their kind, how many of these to take, and the error to expect in %."""

    weights: str
    archive: str
    model: str
    sample: int
    error: tuple[float, float]
    options: dict[str, object]


@pytest.mark.parametrize(
    "testbed",
    [
        Case("cifar10-wrn16x1", "cifar10-test", "wrn16x1", 500, (6.0, 14.0), {}),
        Case("cifar10-wrn16x4", "cifar10-test", "wrn16x4", 100, (2.0, 16.0), {}),
        Case("cifar10-wrn28x10", "cifar10-test", "wrn28x10", 20, (0.0, 20.0), {}),
        Case("cifar10-resnet26gn", "cifar10-test", "resnet26gn", 100, (3.0, 18.0), {}),
        Case("cifar10-vit", "cifar10-test", "vit_cifar", 100, (6.0, 26.0), {}),
        Case("cifar100-resnext29", "cifar100-test", "resnext29", 40, (5.0, 45.0), {}),
        Case("imagenet-resnet50", "imagenet-val-2k", "resnet50", 20, (0.0, 50.0), RESNET50),
    ],
    ids=lambda testbed: testbed.weights,
)
def test_real_weights_classify_real_images(testbed: Case) -> None:
    model = create(testbed.model, file_of_testbed(f"{testbed.weights}.safetensors"), **testbed.options)
    x, y = images_of_testbed(file_of_testbed(f"{testbed.archive}.zip"), testbed.sample)
    with torch.no_grad():
        predicted = torch.cat([model(batch).argmax(1) for batch in x.chunk(testbed.sample // 20)])
    low, high = testbed.error
    assert low <= 100 * (predicted != y).float().mean() <= high


@pytest.mark.parametrize("name", list_models())
def test_every_entry_builds_what_it_says(name: str) -> None:
    entry = MODELS[name]
    with torch.device("meta"):
        model = create(name)
        x = torch.zeros(2, 3, entry.image_size, entry.image_size)
        assert model(x).shape == (2, entry.classes)
    assert not model.training
    assert entry.name == name


def test_the_papers_tables_each_have_their_network() -> None:
    used = {entry.table: name for name, entry in MODELS.items() if entry.table}
    assert used == {1: "wrn28x10", 2: "resnext29", 3: "resnet50"}


def test_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    source = create("wrn16x1", classes=3)
    torch.save({"state_dict": source.state_dict()}, tmp_path / "c.pt")
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(create("wrn16x1", tmp_path / "c.pt", classes=3)(x), source(x))
    with pytest.raises(BadData, match=r"fc\.weight \(3, 64\) instead of \(10, 64\)"):
        create("wrn16x1", tmp_path / "c.pt")


def test_the_augmix_network_is_centred() -> None:
    model = create("wrn40x2")
    seen: list[Tensor] = []
    model.get_submodule("conv1").register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.zeros(1, 3, 32, 32))
    assert torch.equal(seen[0], torch.full((1, 3, 32, 32), -1.0))


def test_names_and_options_are_checked() -> None:
    with pytest.raises(UnknownName, match=r"no model 'resnet5'\. Did you mean 'resnet50'\?"):
        create("resnet5")
    with pytest.raises(BadSetting, match=r"resnext29: .*'depth'; it takes cardinality, base_width, classes"):
        create("resnext29", depth=29)


def test_entries_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODELS["wrn16x1"].classes = 3  # type: ignore[misc]


def test_public_names_are_importable() -> None:
    for name in resitta.models.__all__:
        assert hasattr(resitta.models, name)
    assert all(issubclass(getattr(resitta.models, n), nn.Module) for n in NETWORKS)
