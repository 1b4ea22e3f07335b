import os
import pickle
import random
import sys
from pathlib import Path

import pytest
from tests.tools import OWN_METHOD

from resitta.bench.runner import Job
from resitta.errors import BadData, UnknownName
from resitta.method import create, get_method, list_methods
from resitta.models import create as create_model
from resitta.models import user_code
from resitta.models.user_code import load_file, load_method, loaded_digest


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN_METHOD.replace("FACTOR", "1"))
    return path


def test_a_file_is_run_once_and_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "own.py"
    path.write_text("value = 1")
    os.utime(path, (1, 1))
    first = load_file(path)
    assert load_file(tmp_path / "." / "own.py") is first
    path.write_text("value = 2")  # as long as before
    os.utime(path, (1, 1))  # and in the same second
    second = load_file(path)
    assert (first.value, second.value) == (1, 2)
    assert first.__name__ == second.__name__
    assert loaded_digest(first.__name__) is not None
    assert loaded_digest("torch") is None


def test_a_file_hides_no_other_module(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("value = 1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "random.py").write_text("value = 2")
    assert [load_file(path).value for path in (tmp_path / "random.py", tmp_path / "other" / "random.py")] == [1, 2]
    assert sys.modules["random"] is random


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise ZeroDivisionError")
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_file(tmp_path / "own.py")
    assert not {name for name in set(sys.modules) - before if "own" in name}


def test_a_method_and_a_model_may_share_a_file(mine: Path) -> None:
    mine.write_text(mine.read_text() + "\nfrom resitta.conformance import tiny_network as make")
    assert load_method(f"{mine}:mine") == "mine"
    create_model(f"{mine}:make")
    assert load_method(f"{mine}:mine") == "mine"


def test_a_changed_file_replaces_its_methods(mine: Path) -> None:
    load_method(f"{mine}:mine")
    before = get_method("mine")
    mine.write_text(mine.read_text().replace('register("mine")', 'register("yours")'))
    with pytest.raises(UnknownName, match=r"mine.py registers no method 'mine'. Known: yours."):
        load_method(f"{mine}:mine")
    assert "mine" not in list_methods()
    assert load_method(f"{mine}:yours") == "yours"
    assert get_method("yours") is not before


@pytest.mark.parametrize("spec", ["nowhere.py:mine", "/:mine", "data.txt:mine"])
def test_what_is_no_python_file_is_named(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("1")
    with pytest.raises(BadData, match="is no Python file; give path/to/file.py:name"):
        load_method(spec)


def test_a_file_without_methods_says_how_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("value = 1")
    with pytest.raises(UnknownName, match=r"Put @resitta.register\('mine'\) above its class"):
        load_method(f"{tmp_path / 'own.py'}:mine")


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be like a process that has run no file yet."""
    for name in user_code._loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(user_code, "_loaded", {})


def test_a_pickle_takes_the_file_of_its_class_along(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_method(f"{mine}:mine")
    job = Job(method=create("mine", rate=0.5), seed=1)
    parcel = pickle.dumps(job)
    elsewhere(monkeypatch)
    found: Job = pickle.loads(parcel)
    assert type(found.method) is get_method("mine")
    assert (vars(found.method)["rate"], found.seed, found.method_source) == (0.5, 1, job.method_source)


def test_a_file_that_changed_on_the_way_is_refused(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_method(f"{mine}:mine")
    parcel = pickle.dumps(Job(method=create("mine"), seed=1))
    elsewhere(monkeypatch)
    mine.write_text(mine.read_text().replace("1 *", "2 *"))
    with pytest.raises(BadData, match="mine.py has changed since the runs were asked for"):
        pickle.loads(parcel)


def test_a_file_without_a_name_says_how_to_name_the_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN_METHOD)
    with pytest.raises(UnknownName, match=r"mine.py is a file; name the method in it: .*mine.py:NAME"):
        user_code.load_method(str(path))
