"""Plain folders of images, one subfolder per class."""

import os
from functools import partial
from pathlib import Path

from resitta.data.datasets.files import FileImages, labelled
from resitta.data.datasets.pictures import check_bytes
from resitta.errors import BadData


class ImageFolder(FileImages):
    """Images as `root/<class>/<name>.png`; the class is the place of its folder in sorted order.

    Hidden files are skipped, and so are files beside the class folders. Images keep their stored size, which must be
    the same for all, unless `size` asks for ImageNet's scaling and cropping.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = tempfile.TemporaryDirectory()
    >>> (Path(root.name) / "cat").mkdir()
    >>> Image.new("RGB", (640, 480)).save(f"{root.name}/cat/tom.png")
    >>> ImageFolder(root.name, size=224).read([0]).shape
    torch.Size([1, 3, 224, 224])
    """

    def __init__(self, root: str | Path, *, size: int | None = None, classes: int | None = None) -> None:
        folder = Path(root)
        files = {name: image_files(folder / name) for name in class_folders(folder)}
        names, labels = labelled(files, str(folder))
        load = partial(read_file, folder)
        super().__init__(names, labels, load, origin=str(folder), classes=classes, size=size)


def class_folders(root: Path) -> list[str]:
    """Return the names of the class folders in sorted order; there must be at least one."""
    if not root.is_dir():
        raise BadData(f"{root} is not a folder; check the path.")
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise BadData(f"{root} has no class folders; images must lie in one subfolder per class.")
    return names


def image_files(folder: Path) -> list[str]:
    """Return the names of the files in one class folder; there must be at least one."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
    if not names:
        raise BadData(f"{folder} holds no images; fill this class folder or remove it.")
    return names


def read_file(root: Path, name: str) -> bytes:
    """Return the bytes of one file under `root`."""
    try:
        check_bytes((root / name).stat().st_size, str(root / name))
        return (root / name).read_bytes()
    except OSError as error:
        raise BadData(f"{root / name} cannot be read ({error.strerror}); restore it or remove it.") from error
