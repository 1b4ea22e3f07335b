import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resitta import installing


def test_a_checkout_is_named_by_its_folder() -> None:
    assert installing.install_extra("serve") == f'pip install -e "{Path(__file__).parents[1]}[serve]"'


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
    monkeypatch.setattr(installing, "CHECKOUT", tmp_path)
    monkeypatch.setattr(installing, "distribution", lambda _: SimpleNamespace(read_text=lambda _: record))
    assert installing.install_extra("serve") == command


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
    monkeypatch.setattr(installing, "version", lambda _: torch)
    assert installing.install("timm", "torchvision") == command


def test_upgrades_keep_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "version", lambda _: "2.13.0+cpu")
    wanted = f"pip install --upgrade torch torchvision --index-url {CPU}"
    assert installing.install("torch", "torchvision", upgrade=True) == wanted


def test_what_is_not_there_has_no_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(_: str) -> Any:
        raise PackageNotFoundError

    monkeypatch.setattr(installing, "CHECKOUT", tmp_path)
    monkeypatch.setattr(installing, "distribution", missing)
    monkeypatch.setattr(installing, "version", missing)
    assert installing.install_extra("cli") == 'pip install "resitta[cli]"'
    assert installing.install("torchvision") == "pip install torchvision"
