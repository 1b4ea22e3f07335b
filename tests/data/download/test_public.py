import dataclasses
import hashlib
import io
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resitta.data.download import DATA_SETS, Archive, DataSet, Patience, fetch
from resitta.errors import BadData, BadSetting, UnknownName


@pytest.mark.parametrize("name", DATA_SETS)
def test_records_are_well_formed(name: str) -> None:
    for archive in DATA_SETS[name].archives:
        assert re.fullmatch("[0-9a-f]{32}", archive.md5)
        assert archive.url() == f"https://zenodo.org/records/{archive.record}/files/{archive.file}?download=1"
        assert all(folder.split("/")[0] == DATA_SETS[name].folder for folder in archive.holds)


def test_imagenet_c_has_the_fifteen_corruptions_once() -> None:
    held = [folder for archive in DATA_SETS["imagenetc"].archives for folder in archive.holds]
    assert len(held) == len(set(held)) == 15


def test_a_mirror_replaces_the_base() -> None:
    assert DATA_SETS["cifar10c"].archives[0].url("http://m/x/") == "http://m/x/CIFAR-10-C.tar?download=1"


def test_unpacked_means_every_folder(tmp_path: Path) -> None:
    archive = DATA_SETS["imagenetc"].archives[0]
    for folder in archive.holds:
        assert not archive.is_unpacked(tmp_path)
        (tmp_path / folder).mkdir(parents=True)
    assert archive.is_unpacked(tmp_path)


if TYPE_CHECKING:
    from tests.data.download.conftest import Server

HASTY = Patience(attempts=3, pause=0.001, timeout=0.3)


def make_tar(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 6
        tar.addfile(member, io.BytesIO(b"pixels"))
    return buffer.getvalue()


def serve(server: "Server", monkeypatch: pytest.MonkeyPatch, member: str) -> None:
    """Let the server hold a tar of one file and register it as the data set "tiny"."""
    server.body = make_tar(member)
    md5 = hashlib.md5(server.body).hexdigest()
    archive = Archive(record=1, file="tiny.tar", md5=md5, holds=("Tiny-C",))
    monkeypatch.setitem(DATA_SETS, "tiny", DataSet(folder="Tiny-C", archives=(archive,)))


@pytest.fixture
def tiny(server: "Server", monkeypatch: pytest.MonkeyPatch) -> "Server":
    serve(server, monkeypatch, "Tiny-C/fog.npy")
    return server


def test_fetches_unpacks_and_tidies_up(tiny: "Server", tmp_path: Path) -> None:
    folder = fetch("tiny", tmp_path / "new/root", base_url=tiny.url, patience=HASTY)
    assert folder == tmp_path / "new/root/Tiny-C"
    assert (folder / "fog.npy").read_bytes() == b"pixels"
    assert [item.name for item in folder.parent.iterdir()] == ["Tiny-C"]


def test_a_second_call_asks_nobody(tiny: "Server", tmp_path: Path) -> None:
    for _ in range(2):
        fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)
    assert len(tiny.asked) == 1


def test_only_the_missing_archive_is_fetched(tiny: "Server", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = DATA_SETS["tiny"].archives[0]
    there = Archive(record=1, file="other.tar", md5="0" * 32, holds=("Other",))
    monkeypatch.setitem(DATA_SETS, "two", DataSet(folder=".", archives=(there, archive)))
    (tmp_path / "Other").mkdir()
    fetch("two", tmp_path, base_url=tiny.url, patience=HASTY)
    assert len(tiny.asked) == 1


def test_an_archive_put_there_by_hand_is_used(tiny: "Server", tmp_path: Path) -> None:
    (tmp_path / "tiny.tar").write_bytes(tiny.body)
    fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)
    assert (tmp_path / "Tiny-C/fog.npy").exists()
    assert not tiny.asked


def test_a_wrong_archive_put_there_by_hand_is_named_and_kept(tiny: "Server", tmp_path: Path) -> None:
    (tmp_path / "tiny.tar").write_bytes(b"something else")
    with pytest.raises(BadData, match=r"tiny.tar has not the md5 [0-9a-f]{32}; delete it"):
        fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)
    assert (tmp_path / "tiny.tar").exists()


@pytest.mark.parametrize("script", ["cut", "500 503", "promise-more", "no-length", "silent cut no-range"])
def test_arrives_whole_through_trouble(tiny: "Server", tmp_path: Path, script: str) -> None:
    tiny.script = script.split()
    folder = fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)
    assert (folder / "fog.npy").read_bytes() == b"pixels"


def test_a_tampered_archive_is_deleted_unopened(tiny: "Server", tmp_path: Path) -> None:
    tiny.body = make_tar("Tiny-C/evil.npy")
    with pytest.raises(BadData, match=r"gave a file with md5 .* which was deleted"):
        fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)
    assert not list(tmp_path.iterdir())


def test_too_short_a_promise_shows_in_the_checksum(tiny: "Server", tmp_path: Path) -> None:
    tiny.script = ["promise-less"]
    with pytest.raises(BadData, match="gave a file with md5"):
        fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)


def test_a_part_of_another_file_shows_in_the_checksum_and_heals(tiny: "Server", tmp_path: Path) -> None:
    (tmp_path / "tiny.tar.part").write_bytes(b"x" * 100)
    with pytest.raises(BadData, match="gave a file with md5"):
        fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY)
    assert (fetch("tiny", tmp_path, base_url=tiny.url, patience=HASTY) / "fog.npy").exists()


def test_an_unsafe_archive_with_the_right_checksum_is_refused(
    server: "Server", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(server, monkeypatch, "Tiny-C/../../escaped")
    with pytest.raises(BadData, match="no plain file or folder inside it"):
        fetch("tiny", tmp_path / "root", base_url=server.url, patience=HASTY)
    assert [item.name for item in (tmp_path / "root").iterdir()] == ["tiny.tar"]
    assert [item.name for item in tmp_path.iterdir()] == ["root"]


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'imagenetc'"):
        fetch("imagenet-c", tmp_path)


@pytest.mark.parametrize("base_url", ["file:///etc", "ftp://host", "zenodo.org"])
def test_only_web_addresses(tmp_path: Path, base_url: str) -> None:
    with pytest.raises(BadSetting, match="must begin with http"):
        fetch("cifar10c", tmp_path, base_url=base_url)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(BadData, match="cannot be written to"):
        fetch("cifar10c", tmp_path / "root", base_url="http://127.0.0.1:9")


def test_more_than_the_archive_has_is_not_taken(
    tmp_path: Path, server: "Server", monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(server, monkeypatch, "Tiny-C/fog.npy")
    small = dataclasses.replace(DATA_SETS["tiny"].archives[0], most_gigabytes=0)
    monkeypatch.setitem(DATA_SETS, "tiny", dataclasses.replace(DATA_SETS["tiny"], archives=(small,)))
    with pytest.raises(BadData, match="at most 0 were expected; check the address, or try a mirror"):
        fetch("tiny", tmp_path, base_url=server.url)
    assert list(tmp_path.iterdir()) == []
