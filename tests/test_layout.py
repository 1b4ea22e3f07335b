"""Tests mirror the package: tests/PACKAGE/test_MODULE.py for every src/resitta/PACKAGE/MODULE.py."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "resitta").rglob("*.py"))
EXCEPTIONS = {
    "cli/flags": "types of flags: tested by the commands",
    "serve/settings": "tested by the command in tests/cli/test_serve.py",
    "serve/http_errors": "an exception: tested over HTTP by the other files of tests/serve",
}
"""Modules without a test file of their own, with the reason."""


def name(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "resitta").with_suffix("").as_posix()


def file_for(module: str) -> Path:
    package, _, leaf = module.rpartition("/")
    return ROOT / "tests" / package / f"test_{leaf.strip('_')}.py"


@pytest.mark.parametrize("module", [name(path) for path in MODULES if path.name != "__init__.py"])
def test_every_module_has_a_test_file_of_its_name(module: str) -> None:
    test = file_for(module)
    assert test.exists() or module in EXCEPTIONS, f"write {test.relative_to(ROOT)}, or give a reason in EXCEPTIONS"


@pytest.mark.parametrize("module", EXCEPTIONS)
def test_every_exception_is_a_module_without_a_test_file(module: str) -> None:
    assert (ROOT / "src" / "resitta" / f"{module}.py").exists()
    assert not file_for(module).exists()
