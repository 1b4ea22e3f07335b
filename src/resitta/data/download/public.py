"""The public corrupted data sets on Zenodo: download, verify and unpack them by name."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from resitta.data.download.transfer import PATIENT, Patience, Progress, download
from resitta.data.download.unpack import unpack
from resitta.errors import BadData, BadSetting, UnknownName, near


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One tar of a Zenodo record, and the folders that it brings.

    `holds` are paths below the user's root; their last parts are the top-level folders of the tar. If all exist, the
    archive has been unpacked. A download of more than `most_gigabytes` is refused.
    """

    record: int
    file: str
    md5: str
    holds: tuple[str, ...]
    most_gigabytes: int = 32

    def url(self, base_url: str | None = None) -> str:
        """Return the address of the file on Zenodo, or on a mirror that has it directly under `base_url`."""
        base = base_url or f"https://zenodo.org/records/{self.record}/files"
        return f"{base.rstrip('/')}/{self.file}?download=1"

    def is_unpacked(self, root: Path) -> bool:
        """Tell whether everything that the archive holds lies under `root`."""
        return all((root / folder).is_dir() for folder in self.holds)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: its folder below the root, and the archives that fill it."""

    folder: str
    archives: tuple[Archive, ...]


_IMAGENET_C = """
blur.tar 2d8e81fdd8e07fef67b9334fa635e45c defocus_blur glass_blur motion_blur zoom_blur
digital.tar 89157860d7b10d5797849337ca2e5c03 contrast elastic_transform jpeg_compression pixelate
noise.tar e80562d7f6c3f8834afb1ecf27252745 gaussian_noise impulse_noise shot_noise
weather.tar 33ffea4db4d93fe4a428c40a6ce0c25d brightness fog frost snow
"""
"""The archives, their md5 and the corruptions in them."""


def _imagenet_c(line: str) -> Archive:
    file, md5, *corruptions = line.split()
    return Archive(record=2235448, file=file, md5=md5, holds=tuple(f"ImageNet-C/{name}" for name in corruptions))


def _cifar_c(folder: str, record: int, md5: str) -> DataSet:
    archive = Archive(record=record, file=f"{folder}.tar", md5=md5, holds=(folder,), most_gigabytes=3)
    return DataSet(folder=folder, archives=(archive,))


DATA_SETS = {
    "cifar10c": _cifar_c("CIFAR-10-C", 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),
    "cifar100c": _cifar_c("CIFAR-100-C", 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"),
    "imagenetc": DataSet(folder="ImageNet-C", archives=tuple(map(_imagenet_c, _IMAGENET_C.strip().splitlines()))),
}


def fetch(
    name: str,
    root: str | Path,
    *,
    progress: Progress | None = None,
    base_url: str | None = None,
    patience: Patience = PATIENT,
) -> Path:
    """Bring a data set (`cifar10c`, `cifar100c` or `imagenetc`) to a folder under `root`; return that folder.

    Existing folders are not fetched again, and an interrupted download is resumed. An archive is verified by its md5,
    unpacked and removed. `progress` is called with (done, total) bytes of the current archive; `base_url` is a mirror.

    >>> fetch("cifar10", "data")
    Traceback (most recent call last):
        ...
    resitta.errors.UnknownName: no data set is called 'cifar10'. Did you mean 'cifar10c'?
    """
    if name not in DATA_SETS:
        raise UnknownName(f"no data set is called {name!r}. {near(name, DATA_SETS)}")
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise BadSetting(f"base_url must begin with http:// or https://, not {base_url!r}.")
    place = Path(root)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for archive in DATA_SETS[name].archives:
            if not archive.is_unpacked(place):
                path = place / archive.file
                _obtain(archive, path, archive.url(base_url), progress, patience)
                unpack(path, place, archive.holds)
                path.unlink()
    except OSError as error:
        raise BadData(f"{place} cannot be written to ({error}); choose another folder.") from error
    return place / DATA_SETS[name].folder


def _obtain(archive: Archive, path: Path, url: str, progress: Progress | None, patience: Patience) -> None:
    """Make sure that the right archive is at `path`, by downloading it if it is not there."""
    if path.exists():
        if _md5(path) != archive.md5:
            raise BadData(f"{path} has not the md5 {archive.md5}; delete it and fetch it again.")
        return
    part = path.with_name(path.name + ".part")
    download(url, part, progress=progress, patience=patience, most=archive.most_gigabytes * 10**9)
    found = _md5(part)
    if found != archive.md5:
        part.unlink()
        raise BadData(
            f"{url} gave a file with md5 {found} instead of {archive.md5}, which was deleted; "
            "fetch it again, or from another base_url."
        )
    part.rename(path)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
