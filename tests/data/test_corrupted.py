from pathlib import Path

import numpy as np
import pytest
import torch

from resitta.data.corrupted import Subset, corrupted, evenly, fingerprint
from resitta.data.corruptions import corrupt
from resitta.data.datasets import ArrayImages
from resitta.errors import BadData


@pytest.fixture
def images() -> ArrayImages:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    return ArrayImages(pixels, np.repeat(np.arange(4), 10))


def test_what_is_on_disk_is_what_corrupt_gives(images: ArrayImages, tmp_path: Path) -> None:
    made = corrupted(images, "gaussian_noise", 3, tmp_path, seed=5)
    everything = images.read(range(40))
    assert torch.equal(made.read(range(40)), corrupt(everything, "gaussian_noise", 3, seed=5))
    assert made.labels.tolist() == images.labels.tolist()


def test_it_is_made_once(images: ArrayImages, tmp_path: Path) -> None:
    corrupted(images, "contrast", 5, tmp_path)
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    corrupted(images, "contrast", 5, tmp_path)
    assert file.stat().st_mtime_ns == stamp
    corrupted(images, "contrast", 4, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_is_named(images: ArrayImages, tmp_path: Path) -> None:
    corrupted(images, "contrast", 5, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(BadData, match=f"{file.name} cannot be read .* remove it"):
        corrupted(images, "contrast", 5, tmp_path)


def test_another_set_has_another_fingerprint(images: ArrayImages) -> None:
    assert fingerprint(images) == fingerprint(Subset(images, np.arange(40)))
    assert fingerprint(images) != fingerprint(Subset(images, np.arange(39)))


def test_evenly_keeps_classes_balanced(images: ArrayImages) -> None:
    assert np.bincount(evenly(images, 20).labels).tolist() == [5, 5, 5, 5]
    assert evenly(images, None) is images
    assert evenly(images, 99) is images
