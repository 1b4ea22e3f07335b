import copy
import logging
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resitta
from resitta import Autosave
from resitta.checkpoint.autosave import saved
from resitta.checkpoint.format import read
from resitta.checkpoint.state_lock import Claim
from resitta.errors import BadSetting, BadState, NotSaved

Images = Callable[..., Tensor]


def numbers(folder: Path) -> list[int]:
    return [int(path.stem[6:]) for path in saved(folder)]


def updates_in(folder: Path) -> list[int]:
    return [read(path)["state"]["learner._extra_state"]["updates"] for path in saved(folder)]


def test_every_n_updates_and_the_last_k(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "tent")
    adapter.add_callback(Autosave(tmp_path, updates=3, keep=2))
    for step in range(14):
        adapter(images(4, seed=step))
    assert updates_in(tmp_path) == [12, 9]
    assert numbers(tmp_path) == [4, 3]
    assert len(list(tmp_path.iterdir())) == 3, "and the lock"


def test_several_updates_in_one_call_count(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8)
    adapter.add_callback(Autosave(tmp_path, updates=3))
    adapter(images(40))
    assert updates_in(tmp_path) == [5]


def test_every_t_seconds(model: nn.Module, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    adapter = resitta.adapt(model, "bn")
    adapter.add_callback(Autosave(tmp_path, seconds=10))
    for _ in range(25):
        adapter(images(4))
        now += 1
    assert [read(path)["state"]["_extra_state"]["samples"] for path in saved(tmp_path)] == [84, 44]


def test_a_pause_saves_nothing_and_a_reset_counts_anew(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "tent")
    adapter.add_callback(Autosave(tmp_path, updates=2))
    with adapter.paused():
        for _ in range(5):
            adapter(images(4))
    assert numbers(tmp_path) == []
    for _ in range(4):
        adapter(images(4))
    adapter.reset()
    for _ in range(3):
        adapter(images(4))
    assert updates_in(tmp_path) == [3, 1, 4], "what a reset leaves is far enough from the last file to be saved"


@pytest.mark.parametrize("method", ["tent", "note", "rotta", "resitta"])
def test_recovery_goes_on_as_if_nothing_had_been(model: nn.Module, images: Images, tmp_path: Path, method: str) -> None:
    adapter = resitta.adapt(model, method)
    autosave = Autosave(tmp_path, updates=1)
    adapter.add_callback(autosave)
    logits = [adapter(images(32, seed=step)) for step in range(12)]
    autosave.close()
    again = resitta.recover(model, tmp_path)
    first = again.samples // 32
    assert first > 0
    again.add_callback(Autosave(tmp_path, updates=1))
    for step in range(first, 12):
        assert torch.equal(again(images(32, seed=step)), logits[step])


@pytest.mark.parametrize("spoil", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:-1])])
def test_bad_files_are_passed_over_with_a_warning(
    model: nn.Module,
    images: Images,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], Any],
) -> None:
    adapter = resitta.adapt(model, "tent")
    adapter.add_callback(Autosave(tmp_path, updates=1, keep=3))
    for step in range(5):
        adapter(images(4, seed=step))
    spoil(saved(tmp_path)[0])
    assert Autosave.latest(tmp_path) == saved(tmp_path)[1]
    assert "skipping a state" in caplog.text
    assert resitta.recover(model, tmp_path).stats.updates == 4
    for path in saved(tmp_path):
        spoil(path)
    assert Autosave.latest(tmp_path) is None
    with pytest.raises(BadState, match=r"holds no state that verifies \(3 files\); begin with resitta.adapt"):
        resitta.recover(model, tmp_path)


def test_another_model_is_an_error_not_an_older_file(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "tent")
    adapter.add_callback(Autosave(tmp_path, updates=1))
    adapter(images(4))
    with pytest.raises(BadState, match="another model"):
        resitta.recover(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(300, 5)), tmp_path)


def test_a_full_disk_does_not_stop_the_stream(
    model: nn.Module, images: Images, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, autosave = resitta.adapt(model, "tent"), Autosave(tmp_path, updates=1)
    adapter.add_callback(autosave)
    adapter(images(4))
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(2):
            assert adapter(images(4)).shape == (4, 5)
    assert autosave.failures == 2
    assert [r.levelno for r in caplog.records] == [logging.ERROR] * 2
    assert "No space left on device" in caplog.text
    assert updates_in(tmp_path) == [1]
    adapter(images(4))
    assert updates_in(tmp_path) == [4, 1]


def test_leftovers_of_a_killed_save_are_removed_and_foreign_files_kept(
    model: nn.Module, images: Images, tmp_path: Path
) -> None:
    (tmp_path / "state-0000000001.safetensors.0123abcd.tmp").write_bytes(b"half")
    (tmp_path / "state-best.safetensors").write_bytes(b"mine")
    (tmp_path / "notes.tmp").write_bytes(b"mine")
    adapter = resitta.adapt(model, "tent")
    adapter.add_callback(Autosave(tmp_path, updates=1, keep=1))
    for _ in range(3):
        adapter(images(4))
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["notes.tmp", "state-0000000003.safetensors", "state-best.safetensors", "writer.lock"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs updates=, seconds= or both, found neither"),
        ({"updates": 0}, "updates must be a number of at least 1, found 0"),
        ({"updates": "3"}, "updates must be a number of at least 1, found '3'"),
        ({"seconds": float("nan")}, "seconds must be a number of at least 0, found nan"),
        ({"seconds": 1, "keep": 0}, "keep must be a number of at least 1, found 0"),
    ],
)
def test_senseless_settings_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        Autosave(tmp_path, **options)


# --- one writer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda adapter: pickle.loads(pickle.dumps(adapter))])
def test_a_copy_of_an_adapter_leaves_its_files_alone(
    model: nn.Module, images: Images, tmp_path: Path, copied: Callable[[resitta.Adapter], resitta.Adapter]
) -> None:
    adapter = resitta.adapt(model, "tent")
    adapter.add_callback(Autosave(tmp_path, updates=1, keep=2))
    adapter(images(4))
    adapter(images(4))
    before = [path.read_bytes() for path in saved(tmp_path)]
    twin = copied(adapter)
    for _ in range(3):
        twin(images(4))
    assert [path.read_bytes() for path in saved(tmp_path)] == before
    adapter(images(4))
    assert numbers(tmp_path) == [3, 2]


def test_a_folder_has_one_writer(model: nn.Module, tmp_path: Path) -> None:
    first = Autosave(tmp_path, updates=1)
    with pytest.raises(BadSetting, match=rf"of this process \({os.getpid()}\) keeps its state in .*; close or stop"):
        Autosave(tmp_path, updates=1)
    with pytest.raises(BadSetting, match="keeps its state in"):
        Claim(tmp_path)  # as a service would
    first.close()
    Autosave(tmp_path, updates=1).close()


def test_a_closed_one_saves_no_more(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter, autosave = resitta.adapt(model, "tent"), Autosave(tmp_path, updates=1)
    adapter.add_callback(autosave)
    autosave.close()
    adapter(images(4))
    assert numbers(tmp_path) == []
    with pytest.raises(NotSaved, match="this autosave was closed"):
        autosave.save(adapter)


def test_the_folder_is_free_when_the_adapter_is_gone(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta", guard=True)
    adapter.add_callback(Autosave(tmp_path, updates=1))
    adapter(images(70))
    circle: list[Any] = [adapter]
    circle.append(circle)  # as a notebook or a debugger may hold it: only the collector can tell that it is garbage
    del adapter, circle
    Autosave(tmp_path, updates=1).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("one_thread")  # a forked process cannot use its parent's OpenMP threads
def test_a_fork_does_not_save_and_does_not_hold_the_folder(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter, autosave = resitta.adapt(model, "tent"), Autosave(tmp_path, updates=1)
    adapter.add_callback(autosave)
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        adapter(images(4))
        os.write(to_parent[1], b"." if not saved(tmp_path) else b"!")
        os.read(to_child[0], 1)
        os._exit(0)
    try:
        assert os.read(to_parent[0], 1) == b".", "the fork has saved"
        with pytest.raises(BadSetting, match="keeps its state in"):
            Autosave(tmp_path, updates=1)
        adapter(images(4))
        assert numbers(tmp_path) == [1]
        autosave.close()
        Autosave(tmp_path, updates=1).close()
    finally:
        os.write(to_child[1], b".")
        os.waitpid(child, 0)
