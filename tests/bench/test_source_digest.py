import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network
from tests.tools import OWN_METHOD, Gate
from torch import nn

from resitta.bench.source_digest import described, method_source, model_source
from resitta.method import get_method, list_methods
from resitta.methods import BatchNormAdapt, ResiTTA, Tent
from resitta.models import Normalised
from resitta.models import create as create_model
from resitta.models.user_code import load_method


def source_of(path: Path) -> str | None:
    return method_source(get_method(load_method(f"{path}:mine")))


def test_built_in_methods_go_by_their_files() -> None:
    assert len({method_source(get_method(name)) for name in list_methods()}) == len(list_methods())


def test_a_method_goes_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN_METHOD.replace("FACTOR", "1"))
    first = source_of(path)
    assert source_of(path) == first is not None
    path.write_text(OWN_METHOD.replace("FACTOR", "2"))
    second = source_of(path)
    path.write_text(OWN_METHOD.replace("FACTOR", "1"))
    assert source_of(path) == first != second


SCRIPT = """
import os, sys
sys.path.insert(0, os.getcwd())
from resitta.bench.source_digest import method_source, model_source
for changed in ("unused.py", "unused.py", "outer.py", "inner.py", "innermost.py"):
    with open(changed, "a") as file:
        file.write("\\n# changed")
    if os.fork() == 0:  # each process imports the files once
        import outer
        print(method_source(outer.Mine), model_source("outer:make")["model_source"], flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_files_beside_it_count_when_it_uses_them(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(f"import inner\nfrom torch.nn import Identity as make\n{OWN_METHOD}")
    (tmp_path / "inner.py").write_text("from innermost import f")
    (tmp_path / "innermost.py").write_text("def f(): return 1")
    (tmp_path / "unused.py").write_text("")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, again, *others = (line.split() for line in done.stdout.splitlines())
    assert first == again
    digests = [digest for pair in (first, *others) for digest in pair]
    assert len(set(digests)) == len(digests) == 8


def test_a_class_without_a_file_has_no_digest() -> None:
    code = "from resitta.bench.source_digest import method_source; from resitta.methods import Tent"
    code += "\nclass Mine(Tent): pass\nprint(method_source(Mine))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_a_model_goes_by_the_file_of_its_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from torch.nn import Linear as make")
    first = model_source(f"{path}:make")["model_source"]
    path.write_text("from torch.nn import Linear as make, ReLU")
    assert first != model_source(f"{path}:make")["model_source"] is not None
    assert model_source("wrn16x1") == model_source("timm:resnet18") == {}


class Block(nn.Sequential):
    """A class of the user's own."""


def test_a_module_goes_by_its_classes_its_form_and_its_hidden_buffers() -> None:
    half = (0.5, 0.5, 0.5)
    models: dict[str, Callable[[], nn.Module]] = {
        "plain": small_network,
        "own class": lambda: Block(*small_network().children()),
        "other form": lambda: nn.Sequential(nn.MaxPool2d(2), *small_network().children()),
        "normalised": lambda: Normalised(small_network(), mean=half, std=half),
        "by other values": lambda: Normalised(small_network(), mean=half, std=(0.4, 0.5, 0.5)),
    }
    first, second = ([model_source(make())["model_source"] for make in models.values()] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(models)
    assert None not in first


def test_the_same_name_can_stand_for_different_functions() -> None:
    def make(source: str) -> Any:
        names: dict[str, Any] = {}
        exec(source, names)
        return names["view"]

    def strength(factor: float) -> Any:
        return lambda batch, /, power=1: factor * batch**power

    functions = [make("def view(x): return x"), make("def view(x): return x + 1"), strength(0.5), strength(0.9)]
    found = [described(function) for function in functions]
    assert len(set(found)) == 4
    assert found == [described(function) for function in functions]
    assert described(strength(0.5)) == found[2]
    assert found[0].startswith("view@")


def test_this_library_and_torch_go_by_name() -> None:
    assert described(create_model) == "create"
    assert described(nn.functional.relu) == "relu"
    assert described(nn.ReLU) == "ReLU"
    assert described(functools.partial(create_model, "wrn16x1", classes=3)) == "partial(create, wrn16x1, classes=3)"


class Blur:
    """A view with a setting of its own."""

    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return batch


def test_objects_go_by_their_class_and_values_never_by_an_address() -> None:
    one, other = described(Blur(0.5)), described(Blur(0.9))
    assert one == described(Blur(0.5)) != other
    assert one.startswith("Blur@")
    gates = [described(Gate()) for _ in range(2)]
    assert gates[0] == gates[1]
    assert "0x" not in gates[0]


@pytest.mark.parametrize("method", [Tent, BatchNormAdapt, ResiTTA])
def test_settings_of_built_in_methods_are_plain(method: Any) -> None:
    assert all(isinstance(described(value), bool | int | float | str | None) for value in vars(method()).values())
