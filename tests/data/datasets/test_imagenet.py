from pathlib import Path

import pytest
from PIL import Image

from resitta.data.datasets import ImageNetC, ImageSet
from resitta.errors import BadData, BadSetting

WNIDS = ["n01440764", "n01443537", "n01484850"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place, wnid in enumerate(WNIDS):
        for number in range(2):
            path = tmp_path / f"ImageNet-C/fog/5/{wnid}/val_{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (224, 224), (80 * place, 100 * number, 0)).save(path, quality=100)
    return tmp_path / "ImageNet-C"


def write_listing(root: Path, *lines: str) -> Path:
    path = root.parent / "list.txt"
    path.write_text("\n".join(lines) + "\n\n")
    return path


def test_the_class_is_the_place_of_the_wnid(root: Path) -> None:
    images: ImageSet = ImageNetC(root, "fog", 5, classes=3)
    assert (len(images), images.classes) == (6, 3)
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]
    batch = images.read([5, 0]).float()
    assert batch.shape == (2, 3, 224, 224)
    assert batch.mean(dim=(2, 3)).flatten().tolist() == pytest.approx([160, 100, 0, 0, 0, 0], abs=3)


def test_a_missing_class_would_shift_the_others(root: Path) -> None:
    with pytest.raises(BadData, match="has 3 class folders instead of 1000; unpack the archive again"):
        ImageNetC(root, "fog", 5)


def test_listing_picks_in_its_own_order(root: Path) -> None:
    listing = write_listing(root, f"{WNIDS[2]}/val_1.JPEG", f"{WNIDS[0]}/val_0.JPEG")
    images = ImageNetC(root, "fog", 5, listing, classes=3)
    assert images.labels.tolist() == [2, 0]
    assert images.read([0]).float().mean(dim=(0, 2, 3)).tolist() == pytest.approx([160, 100, 0], abs=3)


def test_listed_labels_do_without_the_other_folders(root: Path) -> None:
    listing = write_listing(root, f"{WNIDS[2]}/val_1.JPEG 2", f"{WNIDS[0]}/val_0.JPEG 999")
    images = ImageNetC(root, "fog", 5, listing)
    assert images.classes == 1000
    assert images.labels.tolist() == [2, 999]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"list\.txt lists no images"),
        ([f"{WNIDS[0]}/val_9.JPEG"], r"val_9\.JPEG is listed in .*list\.txt but missing"),
        ([f"{WNIDS[0]}/val_0.JPEG", f"{WNIDS[0]}/val_1.JPEG 0"], "either all with a label or all without"),
        ([f"{WNIDS[0]}/val_0.JPEG cat"], r"list\.txt has the line 'n01440764/val_0\.JPEG cat'"),
        ([f"{WNIDS[0]}/val_0.JPEG 1 2"], "has the line"),
        (["val_0.JPEG"], "has the line 'val_0.JPEG'; every line must be wnid/name.JPEG"),
        (["../secret.JPEG"], "has the line"),
        (["/etc/secret.JPEG"], "has the line"),
        ([f"{WNIDS[0]}/val_0.JPEG 3"], "has labels 3 to 3; they must lie in 0 to 2"),
    ],
)
def test_bad_listings(root: Path, lines: list[str], message: str) -> None:
    with pytest.raises(BadData, match=message):
        ImageNetC(root, "fog", 5, write_listing(root, *lines), classes=3)


def test_missing_or_binary_listing(root: Path) -> None:
    with pytest.raises(BadData, match=r"none\.txt cannot be read as a list of images"):
        ImageNetC(root, "fog", 5, root / "none.txt")
    with pytest.raises(BadData, match=r"val_0\.JPEG cannot be read as a list of images"):
        ImageNetC(root, "fog", 5, root / f"fog/5/{WNIDS[0]}/val_0.JPEG")


def test_missing_folders(root: Path) -> None:
    with pytest.raises(BadData, match=r"has no corruption 'fogg'\. Did you mean 'fog'"):
        ImageNetC(root, "fogg", 5)
    with pytest.raises(BadData, match=r"fog/4 does not exist; download it with fetch\('imagenetc'"):
        ImageNetC(root, "fog", 4)
    with pytest.raises(BadData, match=r"fog/5 does not exist"):
        ImageNetC(root / "nowhere", "fog", 5)
    with pytest.raises(BadSetting, match="severity"):
        ImageNetC(root, "fog", 9)


def test_a_damaged_image_shows_when_read(root: Path) -> None:
    path = root / f"fog/5/{WNIDS[1]}/val_0.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    images = ImageNetC(root, "fog", 5, classes=3)
    with pytest.raises(BadData, match=rf"{WNIDS[1]}/val_0\.JPEG is not a readable image"):
        images.read([2])
