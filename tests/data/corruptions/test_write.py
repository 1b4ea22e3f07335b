from pathlib import Path

import numpy as np
import pytest
import torch

from resitta.data.corruptions import corrupt, write, write_cifar_c, write_imagenet_c
from resitta.errors import BadData, BadSetting, UnknownName


def images(n: int, side: int = 32) -> write.Pixels:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def corrupted(pixels: write.Pixels, name: str, severity: int, seed: int) -> write.Pixels:
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    return corrupt(batch, name, severity, seed=seed).permute(0, 2, 3, 1).numpy()


def test_cifar_c_has_the_public_layout(tmp_path: Path) -> None:
    clean = images(5)
    write_cifar_c(tmp_path, clean, [3, 1, 4, 1, 5], corruptions=["fog", "jpeg"], seed=2, chunk=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fog.npy", "jpeg_compression.npy", "labels.npy"]
    fog, labels = np.load(tmp_path / "fog.npy"), np.load(tmp_path / "labels.npy")
    assert fog.shape == (25, 32, 32, 3)
    assert fog.dtype == labels.dtype == np.uint8
    assert labels.tolist() == [3, 1, 4, 1, 5] * 5
    for severity in (1, 2, 3, 4, 5):
        rows = fog[5 * (severity - 1) : 5 * severity]
        assert np.array_equal(rows, corrupted(clean, "fog", severity, seed=2))


def test_cifar_c_reports_progress(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    write_cifar_c(
        tmp_path, images(3), [0, 1, 2], corruptions=["contrast"], chunk=2, progress=lambda *news: told.append(news)
    )
    assert told == [("contrast", done, 15) for done in (2, 3, 5, 6, 8, 9, 11, 12, 14, 15)]


def test_an_interrupted_call_leaves_no_false_file_and_can_be_taken_up(tmp_path: Path) -> None:
    def stop(name: str, done: int, _: int) -> None:
        if name == "contrast" and done > 4:
            raise KeyboardInterrupt

    clean, names = images(3), ["brightness", "contrast"]
    with pytest.raises(KeyboardInterrupt):
        write_cifar_c(tmp_path, clean, [0, 1, 2], corruptions=names, progress=stop)
    assert (tmp_path / "brightness.npy").exists()
    assert not (tmp_path / "contrast.npy").exists()
    assert not (tmp_path / "labels.npy").exists()
    made: list[str] = []
    write_cifar_c(tmp_path, clean, [0, 1, 2], corruptions=names, progress=lambda name, *_: made.append(name))
    assert set(made) == {"contrast"}
    assert not list(tmp_path.glob("*.tmp"))
    assert np.array_equal(np.load(tmp_path / "contrast.npy")[-3:], corrupted(clean, "contrast", 5, seed=0))


def test_imagenet_c_has_the_public_layout(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    clean = np.repeat(np.repeat(images(3, 2), 32, 1), 32, 2)
    pairs = [(f"n0144076{i}/ILSVRC2012_val_{i}.JPEG", image) for i, image in enumerate(clean)]
    told: list[tuple[str, int, int]] = []
    write_imagenet_c(
        tmp_path, pairs, corruptions=["brightness"], severities=[1, 5], chunk=2, progress=lambda *n: told.append(n)
    )
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == sorted(f"brightness/{severity}/{path}" for severity in (1, 5) for path, _ in pairs)
    assert told == [("images", 2, 3), ("images", 3, 3)]
    picture = np.array(pillow.open(tmp_path / "brightness" / "5" / pairs[1][0])).astype(int)
    expected = corrupted(clean, "brightness", 5, seed=0)[1]
    assert np.median(np.abs(picture - expected)) <= 1


def test_imagenet_c_keeps_what_is_there(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    pairs = [("n01440764/a.JPEG", images(1)[0])]
    path = tmp_path / "contrast" / "5" / "n01440764" / "a.JPEG"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"already here")
    write_imagenet_c(tmp_path, pairs, corruptions=["contrast"], severities=[5])
    assert path.read_bytes() == b"already here"


def test_bad_arguments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    root = tmp_path / "set"
    with pytest.raises(BadData, match="as many labels"):
        write_cifar_c(root, images(3), [0, 1])
    with pytest.raises(BadData, match="N×H×W×3"):
        write_cifar_c(root, images(3).transpose(0, 3, 1, 2), [0, 1, 2])
    with pytest.raises(BadData, match="N×H×W×3"):
        write_cifar_c(root, images(0), [])
    with pytest.raises(BadSetting, match="chunk"):
        write_cifar_c(root, images(1), [0], chunk=0)
    with pytest.raises(UnknownName, match="fog"):
        write_cifar_c(root, images(1), [0], corruptions=["fogg"])
    assert not root.exists()


def test_imagenet_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    pairs = [("a/1.JPEG", images(1, 32)[0]), ("a/2.JPEG", images(1, 64)[0])]
    with pytest.raises(BadData, match="a/2.JPEG is .* bring all to one size"):
        write_imagenet_c(tmp_path, pairs, corruptions=["contrast"])
    with pytest.raises(BadSetting, match="chunk"):
        write_imagenet_c(tmp_path, pairs, chunk=0)
