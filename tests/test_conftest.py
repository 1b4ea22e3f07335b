"""The suite ends, and passes, wherever it is started."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_pytest(*arguments: str, cwd: Path = ROOT, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'{shell} exec "$0" -m pytest "$@"', sys.executable, "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that wait for each other take long on a busy machine
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_tests_of_signals_pass_where_sigint_is_ignored() -> None:
    files = ["tests/runtime/test_locks.py", "src/resitta/runtime/locks.py", "tests/test_conftest.py"]
    chosen = "ctrl_c or signal_in or interrupt or processes_of_a_test"
    done = run_pytest(*files, "-k", chosen, "-o", "timeout=90", shell="trap '' INT;")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


WAITS = {
    "in Python": "import time\ndef test_waits(): time.sleep(1000)",
    "where signals do not reach": (
        "import signal, time\n"
        "def test_waits():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "    time.sleep(1000)"
    ),
    "in a teardown after a failure": (
        "import time, pytest\n"
        "@pytest.fixture\n"
        "def slow():\n"
        "    yield\n"
        "    time.sleep(1000)\n"
        "def test_waits(slow): assert False"
    ),
    "in a thread after the last test": (
        "import threading, time\ndef test_waits(): threading.Thread(target=time.sleep, args=(1000,)).start()"
    ),
}


@pytest.mark.parametrize("where", WAITS)
def test_a_suite_that_waits_ends_and_fails(where: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\n")
    (tmp_path / "test_it.py").write_text(WAITS[where])
    done = run_pytest(cwd=tmp_path)
    assert done.returncode != 0
    assert "test_waits" in done.stdout or "most recent call first" in done.stderr, done.stdout + done.stderr


@pytest.mark.slow
def test_a_worker_that_waits_ends_and_the_suite_fails(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 6\n")  # the worker's start and end count, too
    (tmp_path / "test_it.py").write_text(WAITS["where signals do not reach"])
    done = run_pytest("-n", "1", cwd=tmp_path)
    assert done.returncode != 0
    assert "crashed while running 'test_it.py::test_waits'" in done.stdout
    assert "most recent call first" in done.stderr


@pytest.mark.parametrize("limit", ["0", "60"])
def test_a_limit_of_ones_own_holds(limit: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 3\n")
    (tmp_path / "test_it.py").write_text(
        f"import time, pytest\n@pytest.mark.timeout({limit})\ndef test_waits(): time.sleep(5)"
    )
    done = run_pytest("-p", "no:hypothesispytest", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_processes_of_a_test_do_not_ignore_sigint() -> None:
    asked = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_no_test_of_the_service_is_left_out_where_it_is_installed() -> None:
    pytest.importorskip("fastapi")
    names = runpy.run_path(str(ROOT / "conftest.py"))
    assert not set(names["OF_THE_SERVICE"]) & set(names["collect_ignore"])
