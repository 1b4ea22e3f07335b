"""The command line as a whole: how fast it starts, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        (["bench", "wrn16x1", "photos"], "resitta.cli.benching.run_bench", "the same command goes on"),
        (["reproduce", "eta", "photos", "w.pt"], "resitta.cli.benching.run_reproduction", "the same command goes on"),
        (["serve", "demo"], "resitta.cli.serving.run_service", "with --state, the same command goes on"),
        (["demo"], "resitta.demo.run.run_demo", "the trained network is kept"),
        (["data", "fetch", "cifar10c"], "resitta.cli.making.run_fetch", "goes on where the download stopped"),
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
