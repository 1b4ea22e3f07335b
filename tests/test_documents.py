"""The pages of docs/: their code runs, their commands parse, their tables and drawings are those of the records."""

import argparse
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import cyclopts
import pytest
import torch
from torch import nn

import resitta
from resitta.cli import build

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
NOT_RUN = "<!-- not run: "
QUOTED = r"<!-- file: .*?<!-- /file -->"  # a whole file of the repository, which has tests of its own


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(path: Path) -> list[str]:
    """The Python of a page that is meant to run; a comment above a block says why another is not."""
    text = re.sub(QUOTED, "", path.read_text("utf-8"), flags=re.DOTALL)
    found = re.findall(r"((?:^<!-- not run.*\n)?)^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [code for comment, code in found if not comment.startswith(NOT_RUN)]


def commands(path: Path) -> list[str]:
    """Every command of this repository on a page, in shell blocks and between backticks."""
    text = path.read_text("utf-8")
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    spans = [
        " ".join(span.split()) for span in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    ]
    starts = r"(?:\.venv/bin/)?(resitta (?:\w|--)|python (?:benchmarks|examples|docs)/\w+)"
    lines = [line.strip() for line in shell.splitlines()] + spans
    return [line.removeprefix(".venv/bin/") for line in lines if re.match(starts, line) and "…" not in line]


@pytest.mark.parametrize("path", [p for p in PAGES if python_blocks(p)], ids=name_of)
def test_the_python_of_a_page_runs(
    path: Path, model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"resitta": resitta, "model": model, "images": torch.rand(70, 3, 10, 10)}
    names |= {"adapter": resitta.adapt(model, "resitta", guard=True)}
    names |= {"test_images": torch.rand(20, 3, 10, 10), "test_labels": torch.arange(20) % 5}
    for block in python_blocks(path):
        exec(compile(block, name_of(path), "exec"), names)


class Parsed(Exception):
    """Raised in place of what a script does after it has read its command line."""


NOT_INSTALLED = ("river", "ray")
"""Libraries of scripts that no extra for the tests brings."""
ALL = sorted({(name_of(path), command) for path in PAGES for command in commands(path)})


@pytest.mark.parametrize(("page", "command"), ALL)
def test_commands_parse(page: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(command, comments=True)
    if program == "resitta":
        if words[0].startswith("--"):
            return  # such as --install-completion, which would run
        try:
            build().parse_args(words, exit_on_error=False, print_error=False)
        except cyclopts.MissingArgumentError:  # the mere name of a command, in a sentence
            assert len(words) <= 2
        return
    script, *given = words
    text = (ROOT / script).read_text("utf-8")
    if "argparse" not in text:
        assert not given, "the script takes no arguments"
        return
    parse = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        parse(self, *args, **kwargs)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", [script, *given])
    monkeypatch.syspath_prepend(str((ROOT / script).parent))
    try:
        with pytest.raises(Parsed):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    except ModuleNotFoundError as missing:
        if missing.name not in NOT_INSTALLED:
            raise
        pytest.skip(f"needs {missing.name}")


def test_there_are_commands_to_parse() -> None:
    assert len(ALL) > 40


@pytest.mark.parametrize("script", ["benchmarks/tables.py", "docs/drawings.py"])
def test_tables_and_drawings_are_those_of_the_records(script: str) -> None:
    done = subprocess.run([sys.executable, script, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_number_typed_by_hand_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    filled = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))["filled"]
    page = (DOCS / "benchmark" / "results.md").read_text("utf-8")
    assert filled(page) == page
    assert filled(page.replace("22.6 ± 0.1", "22.5 ± 0.1")) == page


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    generated = {f"methods/{name}.md" for name in resitta.list_methods()} | {"changelog.md"}
    home = path.parent.parent if path.parent.name == "formulas" else path.parent  # a formula becomes part of a page
    for link in re.findall(r"\]\((?!http|#)([^)#\s]+)", text):
        target = (home / link).resolve()
        known = target.exists() or (target.is_relative_to(DOCS) and str(target.relative_to(DOCS)) in generated)
        assert known, f"{link} leads nowhere"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_document_installs_from_an_index_that_lacks_the_package(path: Path) -> None:
    assert not re.search(r'pip install "?resitta(?:\[[^]]*\])?(?!\[| @)', path.read_text(encoding="utf-8"))


PAGES_OF = {"bench": "bench.run", **{name: f"monitor.{name}" for name in ("events", "guard", "trackers")}}
"""What the reference shows of public modules."""


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(path.read_text("utf-8") for path in (DOCS / "api").glob("*.md"))
    for name in resitta.__all__:
        module = PAGES_OF.get(name, name)
        assert f"::: resitta.{module}" in text or f"`resitta.{name}`" in text or name == "ResittaError", name


def test_every_method_has_a_formula() -> None:
    built_in = [name for name in resitta.list_methods() if (DOCS / "methods" / "formulas" / f"{name}.md").exists()]
    assert set(built_in) >= {"source", "bn", "pl", "tent", "lame", "cotta", "note", "rotta", "resitta"}
