"""ImageNet-C as it is published: folders of JPEGs, already 224×224."""

from functools import partial
from pathlib import Path

from resitta.data.datasets.base import checked_severity
from resitta.data.datasets.files import FileImages, labelled
from resitta.data.datasets.folders import class_folders, image_files, read_file
from resitta.errors import BadData, near


class ImageNetC(FileImages):
    """One corruption of ImageNet-C at one severity: `<corruption>/<severity>/<wnid>/<name>.JPEG`.

    The class is the index of the wnid in sorted order, so all `classes` folders must be there: one missing
    folder would shift every class after it. `listing` is a text file that picks images, such as the usual
    5,000: one `wnid/name.JPEG` per line, optionally followed by its label (then folders may be missing).

    >>> import tempfile
    >>> from PIL import Image
    >>> root = tempfile.TemporaryDirectory()
    >>> folder = Path(root.name) / "fog/5/n01440764"
    >>> folder.mkdir(parents=True)
    >>> Image.new("RGB", (224, 224)).save(folder / "a.JPEG")
    >>> ImageNetC(root.name, "fog", 5, classes=1).read([0]).shape
    torch.Size([1, 3, 224, 224])
    """

    def __init__(
        self,
        root: str | Path,
        corruption: str,
        severity: int,
        listing: str | Path | None = None,
        *,
        classes: int = 1000,
        size: int | None = 224,
    ) -> None:
        folder = _folder(Path(root), corruption, checked_severity(severity))
        if listing is None:
            files = {wnid: image_files(folder / wnid) for wnid in _wnids(folder, classes)}
            names, labels = labelled(files, str(folder))
        else:
            names, labels = _listed(Path(listing), folder, classes)
        load = partial(read_file, folder)
        super().__init__(names, labels, load, origin=str(folder), classes=classes, size=size)


def _folder(root: Path, corruption: str, severity: int) -> Path:
    folder = root / corruption / str(severity)
    if folder.is_dir():
        return folder
    known = [item.name for item in root.glob("*") if item.is_dir()]
    if known and corruption not in known:
        raise BadData(f"{root} has no corruption {corruption!r}. {near(corruption, known)}")
    raise BadData(f"{folder} does not exist; download it with fetch('imagenetc', folder).")


def _wnids(folder: Path, classes: int) -> list[str]:
    wnids = class_folders(folder)
    if len(wnids) != classes:
        raise BadData(
            f"{folder} has {len(wnids)} class folders instead of {classes}; unpack the archive again, "
            f"or give classes={len(wnids)} if that is all there are."
        )
    return wnids


def _listed(listing: Path, folder: Path, classes: int) -> tuple[list[str], list[int]]:
    entries = _entries(listing)
    names = [entry[0] for entry in entries]
    missing = next((name for name in names if not (folder / name).is_file()), None)
    if missing is not None:
        raise BadData(f"{folder / missing} is listed in {listing} but missing; unpack the archive again.")
    if len(entries[0]) == 2:
        return names, [int(entry[1]) for entry in entries]
    place = {wnid: label for label, wnid in enumerate(_wnids(folder, classes))}
    return names, [place[name.split("/")[0]] for name in names]


def _entries(listing: Path) -> list[list[str]]:
    """Return [name] or [name, label] per line; a file is one kind throughout."""
    try:
        entries = [line.split() for line in listing.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{listing} cannot be read as a list of images ({error}); check the path.") from error
    if not entries:
        raise BadData(f"{listing} lists no images; write one wnid/name.JPEG per line.")
    for entry in entries:
        if not _is_entry(entry) or len(entry) != len(entries[0]):
            raise BadData(
                f"{listing} has the line {' '.join(entry)!r}; every line must be wnid/name.JPEG, "
                "either all with a label or all without."
            )
    return entries


def _is_entry(entry: list[str]) -> bool:
    parts = entry[0].split("/")
    named = len(parts) == 2 and all(part and not part.startswith(".") for part in parts)
    return named and (len(entry) == 1 or (len(entry) == 2 and entry[1].isdecimal()))
