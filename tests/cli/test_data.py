from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resitta.cli import main
from resitta.data.datasets import CifarC


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path / "photos"


def test_corrupting_in_the_layout_of_cifar_c(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["corrupt", str(photos), str(out), "--size", "32", "--corruptions", "fog", "frost"]) == 0
    assert "frost uses the" in capsys.readouterr().out
    images = CifarC(out, "frost", 5)
    assert len(images) == 6
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1]


def test_corrupting_in_the_layout_of_imagenet_c(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["corrupt", str(photos), str(out), "--size", "32", "--layout", "folders", "--corruptions", "contrast"]
    assert main(command) == 0
    assert len(list(out.glob("contrast/5/*/*.JPEG"))) == 6
    assert sorted(folder.name for folder in (out / "contrast" / "1").iterdir()) == ["00000", "00001"]


def test_fetch_knows_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "cifar11c"]) == 2


def test_fetch_uses_the_downloader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def fake(name: str, root: Path, *, progress: object) -> Path:
        asked.append((name, root))
        return root / "CIFAR-10-C"

    monkeypatch.setattr("resitta.data.fetch", fake)
    assert main(["data", "fetch", "cifar10c", "--root", str(tmp_path)]) == 0
    assert asked == [("cifar10c", tmp_path)]
