"""The notebooks of examples/: they run from top to bottom, name the extras they need, and hold no outputs."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.test_extras import DISTRIBUTIONS, declared, imported

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
OF_NOTEBOOKS = {"IPython"}
"""What every notebook has."""
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """The cells of a kind, with their source as one text."""
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in found if cell["cell_type"] == kind]


def code(path: Path) -> str:
    return "\n\n\n".join(cell["source"] for cell in cells(path, "code"))


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("nbmake"), reason="needs nbmake, of the extra `notebooks`")
@every_notebook
def test_a_notebook_runs_and_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("work", "temporary", "caches")}
    for folder in folders.values():
        folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    caches = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "TORCHINDUCTOR_CACHE_DIR")
    environment |= {"TMPDIR": str(folders["temporary"]), **dict.fromkeys(caches, str(folders["caches"]))}
    (folders["work"] / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbmake", "--nbmake-timeout=100", path.name]
    done = subprocess.run(command, cwd=folders["work"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [file.name for file in folders["work"].iterdir()] == [path.name]
    assert list(folders["temporary"].iterdir()) == []


@every_notebook
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in cells(path, "code"):
        assert cell["outputs"] == [], f"clear the outputs of {path.name}"
        assert cell["execution_count"] is None
        assert cell["metadata"] == {}


@every_notebook
def test_the_first_cell_names_the_extras_that_a_notebook_needs(path: Path) -> None:
    first = cells(path, "markdown")[0]["source"]
    found = re.search(r'%pip install "resitta\[([\w,]+)\] @ ', first)
    assert found is not None
    installed = set().union(*(declared(extra) for extra in found[1].split(",")))
    needed = {DISTRIBUTIONS.get(name, name) for name in imported(ast.parse(code(path))) - OF_NOTEBOOKS}
    assert needed <= installed


@every_notebook
def test_a_notebook_imports_nothing_from_the_repository(path: Path) -> None:
    modules = {node.module for node in ast.walk(ast.parse(code(path))) if isinstance(node, ast.ImportFrom)}
    assert not {module for module in modules if module and module.split(".")[0] in ("tests", "examples", "benchmarks")}


def test_the_method_of_the_notebook_is_that_of_the_example() -> None:
    example = (ROOT / "examples" / "own_method.py").read_text("utf-8")
    body = example.split('"""\n\n', 1)[1].partition('\n\n\nif __name__ == "__main__":')[0]
    assert body in code(ROOT / "examples" / "notebooks" / "own_method.ipynb")


def test_the_page_of_the_notebooks_lists_all_of_them() -> None:
    page = (ROOT / "docs" / "how-to" / "notebooks.md").read_text("utf-8")
    assert set(re.findall(r"\]\(\.\./\.\./examples/notebooks/([\w.]+)\)", page)) == {path.name for path in NOTEBOOKS}
