"""docs/methods/one-file.md quotes benchmarks/plain.py, and that file is the method."""

import pydoc
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream

import resitta

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods" / "one-file.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("size", [50, 64, 200])
def test_the_code_of_the_page_is_the_method(size: int) -> None:
    names: dict[str, Any] = {"__name__": "plain"}
    exec(compile(block("python"), "one-file.md", "exec"), names)
    model = small_network().double()
    plain, adapter = names["PlainResiTTA"](model), resitta.adapt(model, "resitta")
    images = stream(1300).double()
    for batch in torch.split(images, size):
        torch.testing.assert_close(plain(batch), adapter(batch), rtol=1e-10, atol=1e-10)
    assert adapter.stats.updates == 20
    assert not torch.allclose(adapter(images[:9]), model(images[:9]), atol=1e-2), "much was learned"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(resitta(?:\.\w+)+)`", PAGE))))
def test_every_name_of_the_page_exists(name: str) -> None:
    assert pydoc.locate(name) is not None, f"{name} is gone: rename it on the page"


@pytest.mark.slow
def test_the_command_of_the_page_runs() -> None:
    words = shlex.split(block("sh"))
    assert words[:3] == ["PYTHONPATH=benchmarks", "python", "-c"]
    paths = f"{ROOT / 'benchmarks'}:{ROOT / 'src'}"
    done = subprocess.run(
        [sys.executable, *words[2:]],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == "torch.Size([64, 5])\n", done.stderr
