import errno
import sys
from pathlib import Path

import pytest

from resitta.errors import BadSetting
from resitta.serve import claim
from resitta.serve.claim import Claim


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    first = Claim(tmp_path / "deep" / "down")
    with pytest.raises(BadSetting, match=f"another service keeps its state in {tmp_path}"):
        Claim(tmp_path / "deep" / "down")
    Claim(tmp_path / "elsewhere").release()
    first.release()
    Claim(tmp_path / "deep" / "down").release()


def test_what_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadSetting, match="no state can be kept in"):
            Claim(path)


def test_systems_without_locks_are_served_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    Claim(tmp_path).release()
    assert "no file locks here" in caplog.text

    def unsupported(_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(claim, "lock", unsupported)
    Claim(tmp_path).release()
    assert "No locks available" in caplog.text
