"""The public namespace, the examples, and promises about the source text."""

import ast
import importlib
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


def test_every_public_name_is_what_the_type_checker_sees() -> None:
    tree = ast.parse(Path(resitta.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names if alias.name[0] != "_"}
    assert set(seen) == set(resitta.__all__)
    for name, home in seen.items():
        module = importlib.import_module(str(home))
        assert getattr(resitta, name) is getattr(module, name)
    assert set(resitta.__all__) <= set(dir(resitta))


def test_submodules_are_attributes_and_other_names_are_not() -> None:
    code = "import resitta; print(resitta.guard.Guard.__name__, resitta.bench.__name__, resitta.conformance.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "Guard resitta.bench resitta.conformance\n"
    with pytest.raises(AttributeError, match="module 'resitta' has no attribute 'adpat'"):
        resitta.adpat  # noqa: B018


def test_importing_costs_nothing_until_a_name_is_used() -> None:
    code = "import sys, resitta; assert 'torch' not in sys.modules; resitta.adapt; assert 'torch' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "first", ["resitta.register('tent')(type('Mine', (resitta.Method,), {}))", "import resitta.cli"]
)
def test_the_built_in_methods_are_known_whatever_is_asked_first(first: str) -> None:
    code = (
        f"import resitta, resitta.names, contextlib\n"
        f"with contextlib.suppress(resitta.errors.BadSetting):\n    {first}\n"
        "assert resitta.methods.Tent is type(resitta.create('tent')), resitta.create('tent')\n"
        "assert set(resitta.names.METHODS) <= set(resitta.list_methods())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_needs_nothing_but_torch_and_numpy() -> None:
    code = (
        "import sys, resitta; [getattr(resitta, name) for name in resitta.__all__]; "
        "extras = {'sklearn', 'rich', 'cyclopts', 'PIL', 'safetensors', 'torchvision', 'timm', 'matplotlib', 'scipy'}; "
        "extras |= {'av', 'cv2'}; "
        "sys.exit(str(extras & set(sys.modules)) if extras & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
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
