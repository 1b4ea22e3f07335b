"""Folders of images, one subfolder per class, plain or zipped."""

import os
import zipfile
import zlib
from functools import partial
from pathlib import Path

from resitta.data.datasets.files import FileImages, check_bytes, labelled
from resitta.errors import BadData


class ImageFolder(FileImages):
    """Images as `root/<class>/<name>.png`; the class is the index of its folder in sorted order.

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
        raise BadData(f"{root} has no class folders; put images into one subfolder per class.")
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


COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Other methods can allocate gigabytes before they yield a byte, and hardly compress pictures."""


class ImageZip(FileImages):
    """Images as `<class>/<name>.png` inside a zip; the class is the index of its folder in sorted order.

    Nothing is unpacked to disk. The zip stays open for as long as this object lives. Images keep their stored
    size unless `size` asks for ImageNet's scaling and cropping.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = tempfile.TemporaryDirectory()
    >>> with zipfile.ZipFile(f"{root.name}/pets.zip", "w") as archive, archive.open("cat/tom.png", "w") as file:
    ...     Image.new("RGB", (32, 32)).save(file, "png")
    >>> ImageZip(f"{root.name}/pets.zip").read([0]).shape
    torch.Size([1, 3, 32, 32])
    """

    def __init__(self, path: str | Path, *, size: int | None = None, classes: int | None = None) -> None:
        archive = _open(Path(path))
        names, labels = labelled(_class_files(archive, path), str(path))
        load = partial(_read_member, archive)
        super().__init__(names, labels, load, origin=str(path), classes=classes, size=size)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise BadData(f"{path} cannot be opened as a zip ({error}); download or zip it again.") from error


def _class_files(archive: zipfile.ZipFile, path: str | Path) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name in archive.namelist():
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            raise BadData(f"{path} holds the unsafe name {name!r}; zip the class folders again.")
        folder, _, file = name.rpartition("/")
        if not folder or not file or file.startswith("."):
            continue
        if "/" in folder:
            raise BadData(f"{path} holds {name!r}; zip the class folders so that it reads class/name.png.")
        files.setdefault(folder, []).append(file)
    if not files:
        raise BadData(f"{path} has no class folders; its images must be named class/name.png.")
    return files


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a picture, never more than its declared size (zip bombs)."""
    try:
        member = archive.getinfo(name)
        check_bytes(member.file_size, f"{archive.filename}/{name}")
        if member.compress_type not in COMPRESSIONS:
            found = f"is compressed by method {member.compress_type}"
            raise BadData(f"{archive.filename}/{name} {found}; zip it again without compression, or with deflate.")
        with archive.open(member) as file:
            return file.read(member.file_size)
    # RuntimeError: encrypted; NotImplementedError: an unknown compression
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise BadData(f"{archive.filename}/{name} is damaged ({error}); download or zip it again.") from error
