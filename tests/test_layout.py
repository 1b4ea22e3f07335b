"""Tests mirror the package: tests/PACKAGE/test_MODULE.py for every src/resitta/PACKAGE/MODULE.py."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "resitta").rglob("*.py"))
HTTP = "tested over HTTP by the other files of tests/serve"
EXCEPTIONS = {
    "cli/flags": "types of flags: tested by the commands",
    "method": "abstract classes: tests/conformance and tests/methods check what derives from them",
    "options": "tested through resitta.adapt in tests/adapter/",
    "training/sharing": "tested through Network.fork in tests/training/test_network.py",
    "serve/claim": "another name of checkpoint/state_lock",
    "serve/launch": "tested by the command in tests/cli/test_serve.py",
    "serve/settings": "tested by the command in tests/cli/test_serve.py",
    **dict.fromkeys(("serve/app", "serve/error_responses", "serve/http_errors", "serve/inline"), HTTP),
    **dict.fromkeys(("serve/metrics", "serve/pages", "serve/request_body", "serve/writer"), HTTP),
}
"""Modules without a test file of their own, with the reason."""


def name(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "resitta").with_suffix("").as_posix()


@pytest.mark.parametrize("module", [name(path) for path in MODULES if path.name != "__init__.py"])
def test_every_module_has_a_test_file_of_its_name(module: str) -> None:
    package, _, leaf = module.rpartition("/")
    test = ROOT / "tests" / package / f"test_{leaf.strip('_')}.py"
    assert test.exists() or module in EXCEPTIONS, f"write {test.relative_to(ROOT)}, or give a reason in EXCEPTIONS"
