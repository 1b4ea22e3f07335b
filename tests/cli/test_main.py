"""The command line as a whole: how fast it starts, and how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resitta import cli

COMMANDS = [
    "demo",
    "methods",
    "check",
    "models",
    "bench",
    "reproduce",
    "report",
    "corrupt",
    "serve",
    "export",
    "data",
    "data fetch",
]


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | environment,
    )


def test_help_and_version_do_not_wait_for_torch() -> None:
    lines = [["--help"], ["--version"], *([*command.split(), "--help"] for command in COMMANDS)]
    done = run(f"""
import sys
from resitta.cli import main
for line in {lines!r}:
    assert main(line) == 0
    heavy = {{"torch", "numpy", "fastapi", "PIL"}} & set(sys.modules)
    assert not heavy, (line, heavy)
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["cyclopts", "torch"])
def test_ctrl_c_during_an_import_ends_with_a_sentence(module: str) -> None:
    done = run(f"""
import os, signal, sys
class Strike:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
sys.argv = ["resitta", "check", "source"]
from resitta.cli import main
sys.exit(main())
""")
    assert (done.returncode, done.stderr) == (130, "resitta: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "place", "advice"),
    [
        (["bench", "wrn16x1", "photos"], "resitta.bench.run", "repeat the command to continue"),
        (["reproduce", "eta", "photos", "w.pt"], "resitta.bench.reproduce", "repeat the command"),
        (["serve", "demo"], "resitta.serve.launch.serve", "with --state, repeat the command"),
        (["demo"], "resitta.demo.run.run_demo", "corrupted images and a trained network are kept"),
        (["data", "fetch", "cifar10c"], "resitta.data.fetch", "repeat the command to resume the download"),
    ],
)
def test_ctrl_c_exits_with_130_and_says_how_to_go_on(
    arguments: list[str],
    place: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    assert cli.main(arguments) == 130
    shown = capsys.readouterr().err
    assert shown.startswith("resitta: interrupted; ")
    assert advice in shown
    assert shown.count("\n") == 1


SLOW = """
import time
from pathlib import Path
from torch import nn
from resitta.conformance import tiny_network

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = tiny_network(classes=4)
    def forward(self, images):
        Path("started").touch()
        time.sleep(1)
        return self.network(images)

def make():
    return Slow().eval()
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_processes_of_a_bench(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(160):
        folder = tmp_path / "photos" / str(number % 4)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "resitta.cli", "bench", "slow.py:make", "photos", "--size", "32"]
    command += [
        "--corruptions",
        "clean",
        "--methods",
        "source",
        "--batch-size",
        "1",
        "--seeds",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]
    command += ["--engine", "processes", "--workers", "2"]
    bench = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(bench.pid, signal.SIGINT)  # as a terminal does
        _, shown = bench.communicate(timeout=40)  # one run alone would take 160 s
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(bench.pid, signal.SIGKILL)
    assert bench.returncode == 130
    assert "repeat the command to continue" in shown
    assert "Traceback" not in shown


def test_advice_is_given_for_commands_that_exist() -> None:
    assert set(cli.GO_ON) <= set(COMMANDS)


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    done = run(
        "import sys; from resitta.cli import main; sys.exit(main(['--install-completion']))",
        HOME=str(tmp_path),
        SHELL="/bin/bash",
        XDG_DATA_HOME=str(tmp_path / "data"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    scripts = [path for path in tmp_path.rglob("*resitta*") if path.is_file()]
    assert any("reproduce" in path.read_text() and "--severity" in path.read_text() for path in scripts)
