"""Unpack an untrusted tar: plain files and folders only, inside the target, all or nothing."""

import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from resitta.data.download.transfer import check_space
from resitta.errors import BadData

EXPANSION = 4  # images hardly compress: an archive that grows further is a bomb


def unpack(path: Path, root: Path, holds: Sequence[str]) -> None:
    """Unpack the tar at `path`, gzipped or not, so that the folders `holds` lie under `root`.

    Members are unpacked to a temporary folder first; renaming makes each folder appear complete. Existing folders are
    kept.
    """
    check_space(root, path.stat().st_size, path.name)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=root) as temporary:
        place = Path(temporary)
        _extract(path, place)
        missing = [folder for folder in holds if not (place / Path(folder).name).is_dir()]
        if missing:
            raise BadData(f"{path} lacks the folder {Path(missing[0]).name}; delete it and fetch it again.")
        for folder in holds:
            target = root / folder
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                (place / target.name).rename(target)


def _extract(path: Path, place: Path) -> None:
    allowance = EXPANSION * path.stat().st_size
    try:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                allowance -= member.size
                _refuse_unsafe(member, allowance, path)
                _write(tar, member, place)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BadData(f"{path} is not a whole tar archive ({error}); delete it and fetch it again.") from error


def _refuse_unsafe(member: tarfile.TarInfo, allowance: int, path: Path) -> None:
    name = member.name
    plain = member.isdir() or (member.isreg() and not member.issparse())
    if not plain or name.startswith("/") or ".." in PurePosixPath(name).parts or "\\" in name or ":" in name:
        found = f"holds {name!r}, which is no plain file or folder inside it"
    elif allowance < 0:
        found = f"unpacks to more than {EXPANSION} times its size, unlike any archive of images"
    else:
        return
    advice = "delete the archive and get it from a source you trust"
    raise BadData(f"{path} {found}; nothing was unpacked: {advice}.")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    target = place / member.name
    folder = target if member.isdir() else target.parent
    folder.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    if source is not None:  # None for folders
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
