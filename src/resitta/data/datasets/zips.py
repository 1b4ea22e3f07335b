"""Zipped folders of images, read in place."""

import zipfile
import zlib
from functools import partial
from pathlib import Path

from resitta.data.datasets.files import FileImages, labelled
from resitta.data.datasets.pictures import check_bytes
from resitta.errors import BadData

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Others may ask for gigabytes before the first byte comes out; pictures gain nothing by them."""


class ImageZip(FileImages):
    """Images as `<class>/<name>.png` inside a zip; the class is the place of its folder in sorted order.

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
    """Return the bytes of a picture; never more than the archive says it has, whatever is compressed there."""
    try:
        member = archive.getinfo(name)
        check_bytes(member.file_size, f"{archive.filename}/{name}")
        if member.compress_type not in COMPRESSIONS:
            found = f"is compressed by method {member.compress_type}"
            raise BadData(f"{archive.filename}/{name} {found}; zip it again without compression, or with deflate.")
        with archive.open(member) as file:
            return file.read(member.file_size)
    # RuntimeError: encrypted; NotImplementedError: an exotic compression
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError) as error:
        raise BadData(f"{archive.filename}/{name} is damaged ({error}); download or zip it again.") from error
