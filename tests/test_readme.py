"""The README is short, its code runs, and its first two commands are those that CI and newcomers run."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs(model: nn.Module) -> None:
    names = {"model": model, "images": torch.rand(70, 3, 10, 10)}
    assert blocks("python")
    for block in blocks("python"):
        exec(block, names)


def test_the_first_two_commands_are_the_newcomers() -> None:
    first, second = blocks("sh")[:2]
    assert first.strip().endswith("resitta demo")
    assert second.strip().endswith("python -m pytest -n auto --dist worksteal")
    assert first.count("\n") == second.count("\n") == 1


def test_ci_runs_the_second_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    awk = re.search(r"second_command=\$\((awk .*)\)\n", script)
    assert awk is not None
    found = subprocess.run(["bash", "-c", awk.group(1)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == blocks("sh")[1].strip()


def test_ci_runs_the_suite_with_sigint_ignored_and_uses_the_wheel() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert """(trap '' INT && bash -euo pipefail -c "$second_command")""" in script
    assert '\n.ci/wheel >"$shown" 2>&1 &\nwheel=$!\n' in script
    assert script.rstrip().endswith('\nwait "$wheel"')


def test_it_has_at_most_700_words() -> None:
    assert len(README.split()) <= 700


@pytest.mark.parametrize("link", re.findall(r'(?:\]\(|src="|srcset=")(?!http)([^)#"]+)', README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
