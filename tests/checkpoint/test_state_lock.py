import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resitta.checkpoint import state_lock as claim
from resitta.checkpoint.state_lock import Claim
from resitta.errors import BadSetting


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    first = Claim(tmp_path / "deep" / "down")
    with pytest.raises(
        BadSetting, match=f"another Autosave or service of this process .* keeps its state in {tmp_path}"
    ):
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


HOLD = """
import sys
from pathlib import Path
from resitta.checkpoint.state_lock import Claim
claim = Claim(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(BadSetting, match=f"process {holder.pid} keeps its state in {tmp_path}; close or stop"):
                Claim(tmp_path)
        finally:
            holder.kill()
    Claim(tmp_path).release()


FORK = """
import os, sys, time
from pathlib import Path
from resitta.checkpoint.state_lock import Claim
claim = Claim(Path(sys.argv[1]))
if not os.fork():
    print(os.getpid(), flush=True)  # not before the child has let go of the folder
time.sleep(100)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_outlives_its_parent_does_not_hold_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # it lives
            Claim(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)
