import io
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from resitta.data.download.unpack import unpack
from resitta.errors import BadData

NOISE = random.Random(0).randbytes(60_000)  # as hard to compress as a JPEG


def regular(name: str, content: bytes = b"pixels") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    return member, content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_unpacks_files_and_folders(tmp_path: Path, root: Path, mode: str) -> None:
    members = special("./", tarfile.DIRTYPE), regular("./fog/5/a.JPEG", NOISE), regular("./snow/b.JPEG")
    tar = archive(tmp_path / "a.tar", *members, mode=mode)
    unpack(tar, root, ["ImageNet-C/fog", "ImageNet-C/snow"])
    assert (root / "ImageNet-C/fog/5/a.JPEG").read_bytes() == NOISE
    assert (root / "ImageNet-C/snow/b.JPEG").read_bytes() == b"pixels"
    assert [item.name for item in root.iterdir()] == ["ImageNet-C"]


def test_keeps_a_folder_that_is_there(tmp_path: Path, root: Path) -> None:
    (root / "fog").mkdir()
    unpack(archive(tmp_path / "a.tar", regular("fog/a"), regular("snow/a")), root, ["fog", "snow"])
    assert not (root / "fog/a").exists()
    assert (root / "snow/a").exists()


@pytest.mark.parametrize(
    "bad",
    [
        regular("../escaped"),
        regular("fog/../../escaped"),
        regular("C:\\escaped"),
        special("fog/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("fog/link", tarfile.LNKTYPE, "fog/a"),
        special("fog/pipe", tarfile.FIFOTYPE),
        special("fog/device", tarfile.CHRTYPE),
        special("fog/sparse", tarfile.GNUTYPE_SPARSE),
    ],
    ids=lambda member: member[0].name + member[0].type.decode(),
)
def test_refuses_what_could_leave_the_folder(tmp_path: Path, root: Path, bad: tuple[tarfile.TarInfo, bytes]) -> None:
    tar = archive(tmp_path / "a.tar", regular("fog/a"), bad, regular("fog/b"))
    with pytest.raises(BadData, match="which is no plain file or folder inside it"):
        unpack(tar, root, ["fog"])
    assert not list(root.iterdir())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tar", "root"]


def test_refuses_an_absolute_name(tmp_path: Path, root: Path) -> None:
    tar = archive(tmp_path / "a.tar", regular("fog/a"), regular(str(tmp_path / "escaped")))
    with pytest.raises(BadData, match="which is no plain file or folder inside it"):
        unpack(tar, root, ["fog"])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tar", "root"]


def test_refuses_a_bomb(tmp_path: Path, root: Path) -> None:
    tar = archive(tmp_path / "a.tar", regular("fog/a", bytes(10**6)), mode="w:gz")
    with pytest.raises(BadData, match="more than 4 times its size"):
        unpack(tar, root, ["fog"])
    assert not list(root.iterdir())


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_refuses_a_truncated_archive(tmp_path: Path, root: Path, mode: str) -> None:
    tar = archive(tmp_path / "a.tar", regular("fog/a", NOISE), mode=mode)
    tar.write_bytes(tar.read_bytes()[:-12_000])
    with pytest.raises(BadData, match=r"a.tar is not a whole tar archive"):
        unpack(tar, root, ["fog"])
    assert not list(root.iterdir())


def test_refuses_another_kind_of_file(tmp_path: Path, root: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(BadData, match="not a whole tar archive"):
        unpack(tmp_path / "a.tar", root, ["fog"])


def test_refuses_an_archive_of_something_else(tmp_path: Path, root: Path) -> None:
    with pytest.raises(BadData, match="lacks the folder fog"):
        unpack(archive(tmp_path / "a.tar", regular("snow/a")), root, ["ImageNet-C/fog"])
    assert not list(root.iterdir())


def test_too_small_a_disk(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = archive(tmp_path / "a.tar", regular("fog/a"))
    usage = shutil.disk_usage(root)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=0))
    with pytest.raises(BadData, match=r"a.tar needs .* make room"):
        unpack(tar, root, ["fog"])
