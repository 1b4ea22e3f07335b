import inspect
import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resitta import errors


def test_everything_is_a_resitta_error() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert len(classes) >= 12
    assert all(issubclass(c, errors.ResittaError) for c in classes)
    assert all(c.__doc__ for c in classes)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("rezitta", "Did you mean 'resitta'?"),
        ("ristta", "Did you mean 'resitta'?"),
        ("TENT", "Did you mean 'tent'?"),
        ("tnet", "Did you mean 'tent'?"),
        ("resi", "Did you mean 'resitta'?"),
        ("nb", "Known: bn, resitta, tent."),
        ("te", "Known: bn, resitta, tent."),
        ("eata", "Known: bn, resitta, tent."),
        ("sar", "Known: bn, resitta, tent."),
        ("x", "Known: bn, resitta, tent."),
        ("", "Known: bn, resitta, tent."),
    ],
)
def test_near_names(name: str, answer: str) -> None:
    assert errors.near(name, ["tent", "resitta", "bn"]) == answer


def test_a_missing_extra_is_an_import_error_that_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"nowhere is not installed; run: pip install .*\[cli\]"):
        errors.require("nowhere.inside", "cli")


def test_a_checkout_is_named_by_its_folder() -> None:
    assert errors.install_extra("serve") == f'pip install -e "{Path(__file__).parents[1]}[serve]"'


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///home/me/resitta-0.1.0-py3-none-any.whl", "archive_info": {}},
            'pip install "resitta[serve] @ file:///home/me/resitta-0.1.0-py3-none-any.whl"',
        ),
        ({"url": "file:///home/me/my%20code", "dir_info": {}}, 'pip install "/home/me/my code[serve]"'),
        (
            {"url": "https://host/resitta.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}},
            'pip install "resitta[serve] @ git+https://host/resitta.git@ab12"',
        ),
        (None, 'pip install "resitta[serve]"'),
    ],
)
def test_an_installed_package_is_named_by_where_it_came_from(
    origin: Any, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(errors, "CHECKOUT", tmp_path)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: record))
    assert errors.install_extra("serve") == command


CPU = "https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize(
    ("torch", "command"),
    [
        ("2.13.0", "pip install timm torchvision"),
        ("2.13.0+cpu", f"pip install torchvision --index-url {CPU} && pip install timm"),
        (
            "2.13.0+cu130",
            "pip install torchvision --index-url https://download.pytorch.org/whl/cu130 && pip install timm",
        ),
        ("2.13.0a0+git1234", "pip install timm torchvision"),
    ],
)
def test_builds_for_torch_come_from_the_index_of_that_torch(
    torch: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: torch)
    assert errors.install("timm", "torchvision") == command


def test_upgrades_keep_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cpu")
    wanted = f"pip install --upgrade torch torchvision --index-url {CPU}"
    assert errors.install("torch", "torchvision", upgrade=True) == wanted


def test_what_is_not_there_has_no_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(_: str) -> Any:
        raise PackageNotFoundError

    monkeypatch.setattr(errors, "CHECKOUT", tmp_path)
    monkeypatch.setattr("importlib.metadata.distribution", missing)
    monkeypatch.setattr("importlib.metadata.version", missing)
    assert errors.install_extra("cli") == 'pip install "resitta[cli]"'
    assert errors.install("torchvision") == "pip install torchvision"
