"""Fetch a public data set by name: download, verify, unpack."""

import hashlib
from pathlib import Path

from resitta.data.download.archives import DATA_SETS, Archive
from resitta.data.download.transfer import PATIENT, Patience, Progress, download
from resitta.data.download.unpack import unpack
from resitta.errors import BadData, BadSetting, UnknownName, near


def fetch(
    name: str,
    root: str | Path,
    *,
    progress: Progress | None = None,
    base_url: str | None = None,
    patience: Patience = PATIENT,
) -> Path:
    """Bring a data set (`cifar10c`, `cifar100c` or `imagenetc`) to a folder under `root`; return that folder.

    What is already there is not fetched again. A download that was interrupted goes on where it stopped. An
    archive is unpacked only after its md5 has been found right, and removed afterwards. `progress` is called
    with (done, total) bytes of the archive under way; `base_url` is a mirror that holds the same files.

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
    """See that the right archive lies at `path`: the one that is there already, or a fresh download."""
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
