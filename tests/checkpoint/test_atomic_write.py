import contextlib
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resitta.checkpoint.atomic_write import write_atomically
from resitta.errors import NotSaved


@contextlib.contextmanager
def room(size: int) -> Iterator[None]:
    """Files cannot grow beyond a size: the system refuses to write further, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        write_atomically(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_where_there_is_no_room_the_old_file_stays(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    with (
        room(1000),
        pytest.raises(NotSaved, match=r"file could not be written \(.*\): it takes 5,000 bytes; make room"),
    ):
        write_atomically(tmp_path / "file", b"x" * 5000)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    tmpfs = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(tmpfs, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        write_atomically(disk / "file", b"old")
        with pytest.raises(NotSaved, match=r"No space left on device\): it takes 200,000 bytes; make room"):
            write_atomically(disk / "file", b"x" * 200_000)
        assert (disk / "file").read_bytes() == b"old"
        assert os.listdir(disk) == ["file"]
        write_atomically(disk / "file", b"new")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failure_at_any_step_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(step, fail)
    with pytest.raises(NotSaved, match="Input/output error.*: check the path.*saved there before is untouched"):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace
    kind = {True: "folder", False: "file"}
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: steps.append(kind[Path(f"/proc/self/fd/{fd}").is_dir()]) or sync(fd),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(Path, "replace", lambda *args: steps.append("rename") or replace(*args))  # type: ignore[func-returns-value]
    write_atomically(tmp_path / "file", b"content")
    assert steps == ["file", "rename", "folder"]


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(NotSaved, match="could not be written .*: check the path and its permissions"):
        write_atomically(tmp_path / "file", b"new")


def test_when_only_the_folder_cannot_be_synced_the_message_tells_of_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        sync(descriptor)

    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", fail_for_folders)
    message = r"Input/output error.* The new file is in place all the same, but may not survive a power failure\.$"
    with pytest.raises(NotSaved, match=message):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
