from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resitta.data.datasets import ImageFolder, ImageSet
from resitta.errors import BadData, BadSetting

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    paint(tmp_path / "dog/b.png", BLUE)
    paint(tmp_path / "dog/a.bmp", GREEN)
    paint(tmp_path / "cat/z.PNG", RED)
    return tmp_path


def colours(images: ImageSet, indices: list[int]) -> list[tuple[int, ...]]:
    return [tuple(pixel.tolist()) for pixel in images.read(indices)[:, :, 0, 0]]


def test_classes_and_files_are_sorted(root: Path) -> None:
    images: ImageSet = ImageFolder(root, size=None)
    assert (len(images), images.classes) == (3, 2)
    assert images.labels.tolist() == [0, 1, 1]
    assert colours(images, [2, 0, 1, 2]) == [BLUE, RED, GREEN, BLUE]
    assert images.read([0]).shape == (1, 3, 6, 8)
    assert images.read([]).shape == (0, 3, 6, 8)


def test_a_size_asks_for_scaling_and_cropping(root: Path) -> None:
    assert ImageFolder(root, size=224).read([0, 1]).shape == (2, 3, 224, 224)


def test_hidden_files_and_files_beside_the_classes_are_skipped(root: Path) -> None:
    (root / "README.txt").write_text("about")
    (root / "dog/.DS_Store").write_bytes(b"")
    (root / ".cache").mkdir()
    assert len(ImageFolder(root)) == 3


def test_only_the_images_asked_for_are_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    read_bytes = Path.read_bytes

    def spy(path: Path) -> bytes:
        opened.append(path.name)
        return read_bytes(path)

    images = ImageFolder(root)
    monkeypatch.setattr(Path, "read_bytes", spy)
    images.read([2])
    assert opened == ["b.png"]


def test_sizes_must_agree(root: Path) -> None:
    paint(root / "dog/c.png", RED, (5, 7))
    images = ImageFolder(root, size=None)
    with pytest.raises(BadData, match=r"dog/c\.png is 5×7 pixels but cat/z\.PNG is 8×6; give size="):
        images.read([3])
    assert ImageFolder(root, size=4).read(np.arange(4)).shape == (4, 3, 4, 4)


def test_a_text_file_among_the_images(root: Path) -> None:
    (root / "dog/notes.txt").write_text("about")
    with pytest.raises(BadData, match=r"dog/notes\.txt is not an image file; move it elsewhere"):
        ImageFolder(root)


def test_an_image_that_is_none_shows_when_read(root: Path) -> None:
    (root / "dog/b.png").write_text("not a picture")
    images = ImageFolder(root)
    assert len(images.read([0, 1])) == 2
    with pytest.raises(BadData, match=r"dog/b\.png is not a readable image"):
        images.read([2])


def test_an_image_that_vanished(root: Path) -> None:
    images = ImageFolder(root)
    (root / "dog/b.png").unlink()
    with pytest.raises(BadData, match=r"dog/b\.png cannot be read \(No such file"):
        images.read([2])


def test_empty_and_missing_folders(root: Path) -> None:
    (root / "emu").mkdir()
    with pytest.raises(BadData, match="emu holds no images; fill this class folder or remove it"):
        ImageFolder(root)
    with pytest.raises(BadData, match="emu has no class folders"):
        ImageFolder(root / "emu")
    with pytest.raises(BadData, match="nowhere is not a folder"):
        ImageFolder(root / "nowhere")


def test_bad_size(root: Path) -> None:
    with pytest.raises(BadSetting, match="size must be"):
        ImageFolder(root, size=0)


def test_a_file_too_large_for_a_picture_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "a.png").open("wb") as file:
        file.truncate(2**33)  # of holes: it takes no room on the disk
    with pytest.raises(BadData, match=r"cat/a\.png has 8,589,934,592 bytes, at most .* are read"):
        ImageFolder(tmp_path)
