import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from resitta.data.datasets import CifarBatches, CifarC, ImageSet
from resitta.errors import BadData, BadSetting

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
LABELS = np.arange(20, dtype=np.uint8) % 7


@pytest.fixture
def root(tmp_path: Path) -> Path:
    np.save(tmp_path / "fog.npy", PIXELS)
    np.save(tmp_path / "labels.npy", LABELS)
    return tmp_path


def write_batch(path: Path, data: npt.NDArray[Any], labels: list[int]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=3))
    return path


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_severity_is_its_rows(root: Path, severity: int) -> None:
    images: ImageSet = CifarC(root, "fog", severity)
    first = 4 * (severity - 1)
    assert len(images) == 4
    assert np.array_equal(images.labels, LABELS[first : first + 4])
    assert np.array_equal(images.read([3, 0]).permute(0, 2, 3, 1), PIXELS[[first + 3, first]])


def test_labels_of_one_severity_serve_all(root: Path) -> None:
    np.save(root / "labels.npy", np.array([3, 1, 2, 0]))
    assert CifarC(root, "fog", 4).labels.tolist() == [3, 1, 2, 0]


def test_reading_a_batch_does_not_load_the_file(tmp_path: Path) -> None:
    count = 5000
    whole = np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (5 * count, 32, 32, 3))
    np.save(tmp_path / "labels.npy", np.zeros(count, np.int64))
    tracemalloc.start()
    images = CifarC(tmp_path, "fog", 5)
    batch = images.read(range(64))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < whole.nbytes / 50
    assert peak > batch.numel()  # the measurement sees arrays at all


@pytest.mark.parametrize("name", ["fog.npy", "labels.npy"])
@pytest.mark.parametrize("content", [b"", b"<html>", None], ids=["empty", "html", "cut"])
def test_damaged_files(root: Path, name: str, content: bytes | None) -> None:
    whole = (root / name).read_bytes()
    (root / name).write_bytes(whole[:-1] if content is None else content)
    with pytest.raises(BadData, match=rf"{name} is not a whole .npy file .* fetch it again"):
        CifarC(root, "fog", 5)


def test_pickled_objects_are_not_loaded(root: Path) -> None:
    np.save(root / "labels.npy", np.array([object()] * 20), allow_pickle=True)
    with pytest.raises(BadData, match=r"labels\.npy is not a whole .npy file"):
        CifarC(root, "fog", 5)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("fog", PIXELS / 255, r"fog\.npy holds a 4-d float64 array, not 4-d whole numbers"),
        ("fog", PIXELS[:19], r"fog\.npy holds 19 images, not five severities of n"),
        ("fog", PIXELS[0], r"fog\.npy holds a 3-d uint8 array"),
        ("fog", np.uint8(3), r"fog\.npy holds a 0-d uint8 array"),
        ("fog", PIXELS[..., :2], r"fog\.npy has shape \(4, 32, 32, 2\)"),
        ("fog", PIXELS[:0], r"fog\.npy holds 0 images"),
        ("fog", PIXELS.astype(np.uint16), r"fog\.npy has dtype uint16; it must be uint8"),
        ("labels", LABELS[:7], r"labels\.npy holds 7 labels, not 4 or 20"),
        ("labels", LABELS[None], r"labels\.npy holds a 2-d uint8 array, not 1-d whole numbers"),
        ("labels", LABELS / 1, r"labels\.npy holds a 1-d float64 array"),
    ],
)
def test_wrong_contents(root: Path, name: str, array: npt.NDArray[Any], message: str) -> None:
    np.save(root / f"{name}.npy", array)
    with pytest.raises(BadData, match=message):
        CifarC(root, "fog", 5)


def test_missing_files(root: Path) -> None:
    with pytest.raises(BadData, match=r"fogg\.npy does not exist\. Did you mean 'fog'"):
        CifarC(root, "fogg", 5)
    with pytest.raises(BadData, match=r"Download it with fetch\('cifar10c'"):
        CifarC(root / "elsewhere", "fog", 5)
    (root / "labels.npy").unlink()
    with pytest.raises(BadData, match=r"labels\.npy does not exist"):
        CifarC(root, "fog", 5)


def test_bad_severity(root: Path) -> None:
    with pytest.raises(BadSetting, match="severity"):
        CifarC(root, "fog", 0)


@pytest.mark.parametrize("name", ["test_batch", "test", "cifar-10-batches-py/test_batch", "cifar-100-python/test"])
def test_clean_batches(tmp_path: Path, name: str) -> None:
    data = PIXELS.transpose(0, 3, 1, 2).reshape(20, 3072)
    write_batch(tmp_path / name, data, LABELS.tolist())
    images: ImageSet = CifarBatches(tmp_path, classes=10)
    assert (len(images), images.classes) == (20, 10)
    assert np.array_equal(images.labels, LABELS)
    assert np.array_equal(images.read([19, 2]).permute(0, 2, 3, 1), PIXELS[[19, 2]])


def test_unsuitable_batches(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="holds no test batch; expected one of test_batch, test"):
        CifarBatches(tmp_path)
    write_batch(tmp_path / "test_batch", PIXELS[:, 0, 0], [0] * 20)
    with pytest.raises(BadData, match=r"has data of shape \(20, 3\) instead of N×3072"):
        CifarBatches(tmp_path)
    write_batch(tmp_path / "cifar-100-python/test", PIXELS, [0] * 20)
    with pytest.raises(BadData, match="open the folder of one of them"):
        CifarBatches(tmp_path)


def test_labels_of_another_length(tmp_path: Path) -> None:
    write_batch(tmp_path / "test_batch", PIXELS.reshape(20, 3072), [0] * 19)
    with pytest.raises(BadData, match="test_batch has 20 images but 19 labels"):
        CifarBatches(tmp_path)
