import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resitta.data.datasets import ImageFolder, ImageSet, ImageZip
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


def png(value: int, size: tuple[int, int] = (4, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


def make_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    members = {"README.txt": b"", "dog/": b"", "dog/b.png": png(3), "dog/a.png": png(2), "cat/z.png": png(1)}
    return make_zip(tmp_path / "pets.zip", members)


def test_reads_in_sorted_order(pets: Path) -> None:
    images: ImageSet = ImageZip(pets)
    assert (len(images), images.classes, images.labels.tolist()) == (3, 2, [0, 1, 1])
    assert images.read([2, 0, 1])[:, 0, 0, 0].tolist() == [3, 1, 2]
    assert images.read([0]).shape == (1, 3, 4, 4)


def test_what_a_mac_adds_is_skipped(tmp_path: Path) -> None:
    members = {"cat/a.png": png(1), "__MACOSX/cat/": b"", "__MACOSX/cat/._a.png": b"x", "cat/.DS_Store": b"x"}
    assert len(ImageZip(make_zip(tmp_path / "a.zip", members))) == 1


def test_size_scales_and_crops(pets: Path) -> None:
    assert ImageZip(pets, size=16).read([0]).shape == (1, 3, 16, 16)


@pytest.mark.parametrize("name", ["/cat/a.png", "../cat/a.png", "cat/../a.png", "cat\\a.png"])
def test_unsafe_names(tmp_path: Path, name: str) -> None:
    path = make_zip(tmp_path / "a.zip", {"cat/b.png": png(1), name: png(2)})
    with pytest.raises(BadData, match=r"a\.zip holds the unsafe name"):
        ImageZip(path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, r"a\.zip has no class folders"),
        ({"a.png": png(1)}, r"a\.zip has no class folders; its images must be named class/name\.png"),
        ({"pets/cat/a.png": png(1)}, r"a\.zip holds 'pets/cat/a\.png'; zip the class folders"),
        ({"cat/a.txt": b"hello"}, r"a\.zip/cat/a\.txt is not an image file"),
        ({"cat/a.png": b"hello"}, r"a\.zip/cat/a\.png is not a readable image"),
    ],
)
def test_wrong_contents(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    with pytest.raises(BadData, match=message):
        ImageZip(make_zip(tmp_path / "a.zip", members))


def test_sizes_in_a_zip_must_agree(tmp_path: Path) -> None:
    images = ImageZip(make_zip(tmp_path / "a.zip", {"cat/a.png": png(1), "cat/b.png": png(1, (5, 4))}))
    with pytest.raises(BadData, match=r"cat/b\.png is 5×4 pixels but cat/a\.png is 4×4"):
        images.read([0, 1])


@pytest.mark.parametrize("content", [b"", b"<html>", None], ids=["empty", "html", "cut"])
def test_unreadable_zips(pets: Path, content: bytes | None) -> None:
    pets.write_bytes(pets.read_bytes()[:-30] if content is None else content)
    with pytest.raises(BadData, match=r"pets\.zip cannot be opened as a zip .*; download or zip it again"):
        ImageZip(pets)


def test_missing_zip(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"a\.zip cannot be opened as a zip .*No such file"):
        ImageZip(tmp_path / "a.zip")


def test_a_damaged_member_shows_when_read(pets: Path) -> None:
    raw = bytearray(pets.read_bytes())
    raw[raw.index(png(3)) + 20] ^= 0xFF
    pets.write_bytes(raw)
    images = ImageZip(pets)
    assert len(images.read([0, 1])) == 2
    with pytest.raises(BadData, match=r"pets\.zip/dog/b\.png is damaged .*CRC"):
        images.read([2])


def test_real_cifar_images(beds: Path) -> None:
    images = ImageZip(beds / "cifar10-test.zip")
    assert (len(images), images.classes) == (10_000, 10)
    assert np.bincount(images.labels).tolist() == [1000] * 10
    batch = images.read(range(0, 10_000, 100))
    assert batch.shape == (100, 3, 32, 32)
    assert 110 < batch.float().mean() < 130  # the mean of CIFAR-10 is 121


def lying_zip(path: Path, *, real: int, declared: int) -> Path:
    """A zip whose member unpacks to more than it says, as no honest program makes them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/a.png", bytes(real))
    size, raw = struct.pack("<I", real), path.read_bytes()
    assert raw.count(size) == 2, "in the member's header and in the directory"
    path.write_bytes(raw.replace(size, struct.pack("<I", declared)))
    return path


def test_a_member_that_unpacks_to_more_than_it_says_takes_no_memory(tmp_path: Path) -> None:
    path = lying_zip(tmp_path / "a.zip", real=200_000_000, declared=5000)
    assert path.stat().st_size < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(BadData, match=r"a\.zip/cat/a\.png is damaged"):
            ImageZip(path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_member_too_large_for_a_picture_is_not_unpacked(tmp_path: Path) -> None:
    path = lying_zip(tmp_path / "a.zip", real=1_000_000, declared=2**30)
    with pytest.raises(BadData, match=r"a\.zip/cat/a\.png has 1,073,741,824 bytes, at most .* are read; it is no pict"):
        ImageZip(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_may_take_gigabytes_are_refused(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as archive:
        archive.writestr("cat/a.png", png(1))
    with pytest.raises(BadData, match=rf"is compressed by method {kind}; zip it again without compression, or with de"):
        ImageZip(tmp_path / "a.zip")


def test_a_deflated_zip_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/a.png", png(7))
    assert ImageZip(tmp_path / "a.zip").read([0])[0, 0, 0, 0] == 7


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9000, 20_000], ids=["ours", "Pillow's"])
def test_a_small_file_with_a_huge_picture_is_not_decoded(tmp_path: Path, side: int) -> None:
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "png")
    assert len(buffer.getvalue()) < 100_000
    path = make_zip(tmp_path / "a.zip", {"cat/a.png": buffer.getvalue()})
    with pytest.raises(
        BadData, match=r"a\.zip/cat/a\.png (has 9000×9000 pixels|is too large: Image size).*; scale it do"
    ):
        ImageZip(path)


def test_a_batch_of_large_pictures_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    images = ImageZip(make_zip(tmp_path / "a.zip", {f"cat/{n}.png": png(1, (4000, 3000)) for n in range(2)}))
    with pytest.raises(
        BadData, match=r"100 images of 4000×3000 pixels take 3,600,000,000 bytes, .*; read fewer at once"
    ):
        images.read([0, 1] * 50)
    assert images.read([1]).shape == (1, 3, 3000, 4000)
