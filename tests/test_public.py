"""The public namespace, the examples, and promises about the source text."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import resitta

ROOT = Path(__file__).parents[1]


def test_all_is_what_is_importable() -> None:
    for name in resitta.__all__:
        assert getattr(resitta, name) is not None
    public = {name for name in vars(resitta) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(resitta, name), type(sys))}
    assert public - modules <= set(resitta.__all__)


def test_importing_needs_nothing_but_torch_and_numpy() -> None:
    code = (
        "import sys, resitta; "
        "extras = {'sklearn', 'rich', 'cyclopts', 'PIL', 'safetensors', 'torchvision', 'timm', 'matplotlib', 'scipy'}; "
        "sys.exit(str(extras & set(sys.modules)) if extras & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_branch_on_a_data_set_name() -> None:
    names = ("cifar", "imagenet")
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If | ast.IfExp | ast.Match | ast.While):
                test = node.subject if isinstance(node, ast.Match) else node.test
                words = [str(c.value).lower() for c in ast.walk(test) if isinstance(c, ast.Constant)]
                assert not any(name in word for word in words for name in names), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path: Path) -> None:
    runpy.run_path(str(path), run_name="__main__")
