import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from resitta.data import datasets
from resitta.data.datasets import CifarBatches, CifarC, ImageFolder, ImageNetC, ImageZip, open_images
from resitta.errors import BadData, BadSetting


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32)).save(path)
    return path


def cifar_c(root: Path) -> Path:
    np.save(root / "fog.npy", np.zeros((5, 32, 32, 3), np.uint8))
    np.save(root / "labels.npy", np.zeros(5, np.int64))
    return root


def cifar_batches(root: Path) -> Path:
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]}
    (root / "test_batch").write_bytes(pickle.dumps(batch, protocol=3))
    return root


def imagenet_c(root: Path) -> Path:
    picture(root / "fog/5/n01440764/a.JPEG")
    return root


def folder(root: Path) -> Path:
    picture(root / "cat/a.png")
    return root


def zipped(root: Path) -> Path:
    with zipfile.ZipFile(root / "pets.ZIP", "w") as archive:
        archive.write(picture(root / "a.png"), "cat/a.png")
    return root / "pets.ZIP"


DOMAIN = {"corruption": "fog", "severity": 5}


@pytest.mark.parametrize(
    ("make", "options", "kind"),
    [
        (cifar_c, DOMAIN, CifarC),
        (cifar_batches, {}, CifarBatches),
        (imagenet_c, {**DOMAIN, "classes": 1}, ImageNetC),
        (folder, {"size": 32}, ImageFolder),
        (zipped, {"classes": 10}, ImageZip),
    ],
)
def test_finds_the_kind(tmp_path: Path, make: Any, options: dict[str, Any], kind: type) -> None:
    images = open_images(make(tmp_path), **options)
    assert type(images) is kind
    assert images.read([0]).shape[:2] == (1, 3)


def test_says_which_option_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"opened as CifarC, which takes .* missing a required argument: 'severity'"):
        open_images(cifar_c(tmp_path), corruption="fog")
    with pytest.raises(BadSetting, match="got an unexpected keyword argument 'size'"):
        open_images(cifar_c(tmp_path), **DOMAIN, size=3)


def test_says_what_it_found(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="is no known data set: it holds nothing; expected CIFAR-C"):
        open_images(tmp_path)
    for name in "fbdeac":
        (tmp_path / name).write_text("")
    with pytest.raises(BadData, match=r"it holds a, b, c, d, e, \.\.\.; expected"):
        open_images(tmp_path)
    with pytest.raises(BadData, match="it holds one file; expected"):
        open_images(tmp_path / "a")


def test_public_names_are_importable() -> None:
    assert all(hasattr(datasets, name) for name in datasets.__all__)
