"""A reset or rollback is acknowledged when it is durable; otherwise the old state is in force, also after a restart."""

import errno
import os
import resource
import signal
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.serve.helpers import SIZE, images, picture, until, writer_of
from torch import nn

import resitta
from resitta.checkpoint.tree import same
from resitta.runtime.weight_handoff import WeightHandoff
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Task
from resitta.serve.service import Service
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import Writer

Make = Callable[[], Service]
CHANGES: list[Task] = ["reset", "rollback"]
FULL = OSError(errno.ENOSPC, "No space left on device")
FAILURES = [
    ("resitta.checkpoint.atomic_write.os.fsync", FULL, 507),
    ("resitta.checkpoint.atomic_write._sync_folder", OSError(errno.EIO, "Input/output error"), 503),
    ("resitta.checkpoint.atomic_write.Path.replace", PermissionError(errno.EACCES, "Permission denied"), 503),
    ("resitta.checkpoint.io.seal", MemoryError(), 503),
]
"""What fails and how, and the status of the answer."""


@pytest.fixture
def make(model: nn.Module, tmp_path: Path) -> Make:
    def make() -> Service:
        adapter = resitta.adapt(model, "resitta", update_every=8, guard=True)
        return Service(adapter, size=SIZE, state=tmp_path / "state", limits=Limits(learn_batch=8, save_every=3600))

    return make


def teach(service: Service, *seeds: int) -> None:
    for seed in seeds:
        done = service.writer.report().counters.learned
        service.submit(images(8, seed)).result(10)
        until(partial(has_learned, service, done + 8))


def has_learned(service: Service, count: int) -> bool:
    return service.writer.report().counters.learned == count


def fail(error: BaseException) -> Callable[..., Any]:
    def raiser(*_: object, **__: object) -> None:
        raise error

    return raiser


def adaptation(service: Service) -> dict[str, Any]:
    """What the adapter has learned, and where its randomness stands."""
    state = service.adapter.state_dict()
    return {name: value for name, value in state.items() if name != "_extra_state"} | {
        "samples": service.adapter.samples,
        "generator": service.adapter.generator.get_state(),
    }


def published(service: Service) -> dict[str, Any]:
    """What readers predict with."""
    front = writer_of(service).front
    assert front is not None
    version, tensors = front.weights.read()
    return {"version": version, "tensors": tensors}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure[0])
def test_what_cannot_be_saved_is_not_done(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: Task, failure: tuple[str, BaseException, int]
) -> None:
    broken, error, status = failure
    with make() as service:
        teach(service, 0)
        service.writer.ask("snapshot").result(10)
        teach(service, 1, 2)
        service.writer.ask("snapshot").result(10)
        before, expected = adaptation(service), published(service)
        with monkeypatch.context() as disk:
            disk.setattr(broken, fail(error))
            with pytest.raises(Refused, match=f"the {name} failed; version 3 remains in use") as refused:
                service.writer.ask(name).result(10)
        assert refused.value.status == status
        assert same(published(service), expected)
        assert same(adaptation(service), before)
        assert service.writer.report().failed_saves == 1
        assert service.folder.versions() == [1, 3]
        teach(service, 3)  # and it goes on learning
        assert service.writer.report().version == 4
        assert service.adapter.samples == 32


def test_a_state_that_cannot_be_published_is_not_in_force(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as service:
        teach(service, 0)
        before = adaptation(service)
        monkeypatch.setattr(WeightHandoff, "put", fail(MemoryError()))
        assert isinstance(service.writer.ask("reset").exception(10), MemoryError)
        assert same(adaptation(service), before)
        assert service.folder.versions() == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_restart_after_a_refused_change_recovers_the_old_state(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: Task
) -> None:
    with make() as service:
        teach(service, 0, 1)
        service.writer.ask("snapshot").result(10)
        before = adaptation(service)
        monkeypatch.setattr("resitta.checkpoint.atomic_write.os.fsync", fail(FULL))
        with pytest.raises(Refused):
            service.writer.ask(name).result(10)
    monkeypatch.undo()
    again = make()
    assert again.writer.report().version == 2
    assert same(adaptation(again), before)


def test_images_that_wait_are_learned_from_after_a_refused_change(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as service:
        service.submit(images(4)).result(10)  # half a batch waits
        monkeypatch.setattr("resitta.checkpoint.atomic_write.os.fsync", fail(FULL))
        with pytest.raises(Refused):
            service.writer.ask("reset").result(10)
        until(lambda: service.writer.report().counters.learned == 4)
    assert service.writer.report().counters.skipped == 0


def test_a_later_snapshot_that_could_not_be_removed_goes_with_the_next_save(model: nn.Module, tmp_path: Path) -> None:
    folder, adapter = StateFolder(tmp_path, keep=2), resitta.adapt(model, "source")
    for version in (1, 2, 3, 9):
        adapter.save(folder._file(version))
    folder.save(adapter, 4)
    assert folder.versions() == [3, 4]


def test_http_says_507_and_serves_the_old_version(
    client: httpx.Client, holder: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(16):
        client.post("/predict", content=picture(seed=seed), headers={"Content-Type": "image/png"})
    until(lambda: service.writer.report().version == 1)
    assert holder.post("/snapshot").json()["version"] == 1
    with monkeypatch.context() as disk:
        disk.setattr("resitta.checkpoint.atomic_write.os.fsync", fail(FULL))
        for path in ("/reset", "/rollback"):
            answer = holder.post(path)
            assert answer.status_code == 507
            assert "version 1 remains in use" in answer.json()["error"]
            assert "make room on the disk" in answer.json()["error"]
    assert client.get("/stats").json()["version"] == 1
    assert holder.post("/reset").json() == {"version": 2, "learning": True}
    assert client.get("/stats").json()["snapshots"] == [1, 2]


# In processes of their own, which are killed or may not write.


def in_child(task: Callable[[], None]) -> int:
    """Run a task in a forked process and return its status as `os.waitpid` does."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            signal.alarm(60)
            task()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def kill_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


STEPS = {
    "resitta.checkpoint.atomic_write.secrets.token_hex": False,
    "resitta.checkpoint.atomic_write.os.fsync": False,
    "resitta.checkpoint.atomic_write.Path.replace": False,
    "resitta.checkpoint.atomic_write._sync_folder": True,
    "resitta.runtime.weight_handoff.WeightHandoff.put": True,
    "resitta.serve.learning.LearnQueue.clear": True,
}
"""Where a process is killed, and whether its change is in force after that."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_in_between_leaves_the_old_state_or_the_new(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: str
) -> None:
    def writer() -> Writer:
        adapter = resitta.adapt(model, "resitta", update_every=8)
        return Writer(adapter, StateFolder(tmp_path, keep=5), Limits(), Events())

    first = writer()
    first.adapter(images(8, 0))
    first._publish(1)
    first.snapshot()
    old = first.adapter.state_dict()
    first.adapter(images(16, 1))
    first._publish(2)
    first.snapshot()
    newest = first.adapter.state_dict()

    def task() -> None:
        kill_before(step, monkeypatch)
        first.rollback(1) if name == "rollback" else first.reset()

    assert os.WTERMSIG(in_child(task)) == signal.SIGKILL
    done = STEPS[step]
    again = writer()
    changed = old if name == "rollback" else resitta.adapt(model, "resitta", update_every=8).state_dict()
    assert same(again.adapter.state_dict(), changed if done else newest)
    assert again.version == (3 if done else 2)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.usefixtures("one_thread")
def test_a_system_that_refuses_to_write_is_a_full_disk(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta", update_every=8)
    writer = Writer(adapter, StateFolder(tmp_path, keep=5), Limits(), Events())
    adapter(images(16))
    writer.snapshot()
    before = adapter.state_dict()

    def task() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # no file may grow beyond this
        with pytest.raises(Refused, match="make room on the disk") as refused:
            writer.reset()
        assert refused.value.status == 507
        assert same(adapter.state_dict(), before)

    assert in_child(task) == 0
    fresh = resitta.adapt(model, "resitta", update_every=8)
    assert StateFolder(tmp_path, keep=5).versions() == [0]
    StateFolder(tmp_path, keep=5).recover(fresh)
    assert torch.equal(fresh(images(4)), adapter(images(4)))
