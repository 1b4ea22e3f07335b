"""Every third-party package that the code imports is declared in pyproject.toml, in the extra that users install."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "resitta").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "prometheus_client": "prometheus-client",
    "sklearn": "scikit-learn",
}
"""Packages that are imported by another name than they are installed by."""
WITH_TORCH = {"triton"}
"""What torch for CUDA brings along: modules that import it are imported lazily, and do without it elsewhere."""
EXTRA_OF = {"cli": "cli", "serve": "serve", "distributed": "dist", "demo": "demo", "bench": "bench"}
"""Packages of ours that need an extra as a whole; elsewhere, optional packages are asked for by `require`."""


def declared(extra: str) -> set[str]:
    """The names of all distributions that an extra installs, with those of the core and of the extras in it."""
    found: set[str] = set()
    for line in [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else [])]:
        name, inner = re.fullmatch(r"([\w.-]+)(?:\[(.*)\])?(?:[<>=~!].*)?", line).groups()  # type: ignore[union-attr]
        found |= set().union(*(declared(part) for part in inner.split(","))) if inner else {name}
    return found


def imported(tree: ast.Module) -> set[str]:
    """Third-party packages in import statements, but for those that only a type checker reads."""
    skipped = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    unread = {id(inner) for node in skipped for inner in ast.walk(node)}
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in unread:
            names += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and id(node) not in unread:
            names.append(node.module)
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"resitta"}


def required(tree: ast.Module) -> set[tuple[str, str]]:
    """The package and the extra of each `require("package", "extra")`."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "require"]
    return {(str(call.args[0].value), str(call.args[1].value)) for call in calls if _literal(call)}  # type: ignore[attr-defined]


def _literal(call: ast.Call) -> bool:
    return len(call.args) == 2 and all(isinstance(argument, ast.Constant) for argument in call.args)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src" / "resitta")))
def test_imports_are_declared(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    part = path.relative_to(ROOT / "src" / "resitta").parts[0]
    here = declared(EXTRA_OF.get(part, ""))
    missing = {name for name in imported(tree) - WITH_TORCH if DISTRIBUTIONS.get(name, name) not in here}
    asked = required(tree)
    missing -= {package.partition(".")[0] for package, _ in asked}  # imported again after `require`, for its names
    assert not missing, f"declare {missing} in pyproject.toml"
    for package, extra in asked:
        top = package.partition(".")[0]
        assert DISTRIBUTIONS.get(top, top) in declared(extra), f"the extra {extra} does not install {package}"


def test_the_check_sees_imports_and_extras() -> None:
    tree = ast.parse(
        "import os, yaml\nfrom numpy import x\nif TYPE_CHECKING:\n    import never\nrequire('PIL.Image', 'demo')"
    )
    assert imported(tree) == {"yaml", "numpy"}
    assert required(tree) == {("PIL.Image", "demo")}
    assert {"torch", "numpy", "rich", "pillow"} <= declared("bench")
    assert "pillow" not in declared("")
