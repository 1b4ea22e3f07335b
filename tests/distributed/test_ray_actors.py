"""The actors as plain objects: what they do needs no cluster."""

import errno
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import resitta
from resitta.distributed.ray_actors import WriterActor
from resitta.serve.settings import Limits


@pytest.fixture
def writer(model: nn.Module, tmp_path: Path) -> Iterator[WriterActor]:
    actor = WriterActor(partial(resitta.adapt, model, "resitta"), Path.cwd(), tmp_path, Limits())
    yield actor
    actor.close()


def test_a_reader_hears_each_version_once(writer: WriterActor, model: nn.Module) -> None:
    first = writer.news(0, "", 0)
    assert first is not None
    assert (first.version, first.tensors) == (0, {})
    assert writer.news(0, first.writer, 0) is None
    assert writer.offer(torch.rand(64, 3, 10, 10).numpy(), ["one"] * 64) == [True] * 64
    deadline = time.monotonic() + 20
    while (second := writer.news(0, first.writer, 0)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert second is not None
    assert second.version == 1
    assert second.tensors
    assert writer.news(1, first.writer, 1) is None
    assert writer.report().readers == {0: 0, 1: 1}
    assert writer.news(0, "a writer before", 1) is not None, "another writer's version 1 is another state"


def test_logits_that_come_along_are_learned_from(writer: WriterActor) -> None:
    logits = torch.zeros(64, 5)
    logits[:, 3] = 9.0
    first, images = torch.rand(64, 3, 10, 10), torch.rand(64, 3, 10, 10)
    for batch in (first, images):  # a new learner predicts its first batch itself
        writer.offer(batch.numpy(), ["one"] * 64, logits.numpy())
        deadline = time.monotonic() + 20
        while writer.report().counters.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
    memory = writer.writer.adapter.learner.memory()
    assert memory is not None
    kept = zip(memory.samples, memory.labels, strict=True)
    labels = {int(label) for sample, label in kept if bool((sample == images).flatten(1).all(1).any())}
    assert labels == {3}


def test_tasks_are_done_and_refusals_travel(writer: WriterActor) -> None:
    assert writer.do("pause") == (None, None)
    assert writer.report().paused
    assert writer.do("snapshot") == (0, None)
    result, refusal = writer.do("rollback", 7)
    assert result is None
    assert refusal is not None
    assert refusal[0] == 409
    assert "no snapshot of version 7" in refusal[1]


def test_clients_are_told_apart_by_the_writer(model: nn.Module, tmp_path: Path) -> None:
    writer = WriterActor(partial(resitta.adapt, model, "resitta", guard=True), Path.cwd(), tmp_path, Limits())
    try:
        images = torch.rand(64, 3, 10, 10)
        images[8:] = 0
        for _ in range(2):
            writer.offer(images.numpy(), ["good"] * 8 + ["bad"] * 56)
        deadline = time.monotonic() + 20
        while len(writer.report().clients) < 2 or writer.report().counters.waiting:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        report = writer.report()
        assert (report.counters.learned, report.counters.screened) == (16, 112)
        assert report.muted == {"bad"}
        assert "is predicted, but no longer learned from" in report.events[0].text
    finally:
        writer.close()


def test_a_reset_on_a_full_disk_is_refused(writer: WriterActor, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("resitta.checkpoint.atomic_write.os.fsync", full)
    result, refusal = writer.do("reset")
    assert result is None
    assert refusal is not None
    assert refusal[0] == 507
    assert "version 0 remains in use" in refusal[1]
