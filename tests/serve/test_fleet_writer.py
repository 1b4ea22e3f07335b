"""The thread that learns from all streams: what predictions wait for, controls of one stream, a full disk."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network
from tests.serve.fleets import QUICK, TOKEN_HOLDER, batches, fleet_service, rows, send, settle
from tests.serve.helpers import images, until
from torch import Tensor, nn

import resitta
from resitta.errors import BadSetting
from resitta.serve.http_errors import Refused
from resitta.serve.settings import Limits

FULL = OSError(errno.ENOSPC, "No space left on device")


def fail(*_: object, **__: object) -> None:
    raise FULL


def test_predictions_wait_for_no_update_of_any_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, started = threading.Event(), threading.Event()

    def update() -> None:
        started.set()
        release.wait(30)

    with fleet_service(tmp_path) as service:
        for name in "ab":
            send(service, name, images(4))
        monkeypatch.setattr(service.fleet["a"].adapter.learner, "update", update)
        service.submit(images(8), TOKEN_HOLDER, "a").result(10)
        assert started.wait(10)
        for name in "abc":  # answered although an update is at work; c is new
            assert len(service.submit(images(8), TOKEN_HOLDER, name).result(10).logits) == 8
        assert service.streams() is not None
        assert rows(service)["b"].waiting == 8
        assert service.stats()["predictions_wait_for_updates"] is False
        release.set()
        settle(service)
        assert rows(service)["c"].samples == 8


ONE_STEP = [("tent", {}), ("resitta", {"label_prior": "temporal"}), ("note", {}), ("tide", {})]


@pytest.mark.parametrize(("method", "settings"), ONE_STEP)
def test_methods_whose_predictions_need_their_learners_are_served_in_one_step(
    tmp_path: Path, method: str, settings: dict[str, Any]
) -> None:
    own = {**settings, **(QUICK if method == "resitta" else {})}
    separate = {name: resitta.adapt(small_network(), method, **own) for name in "ab"}
    with fleet_service(tmp_path, method, **settings) as service:
        assert service.stats()["predictions_wait_for_updates"] is True
        for name, batch in batches("ab", count=5):
            torch.testing.assert_close(send(service, name, batch).logits, separate[name](batch), rtol=1e-5, atol=1e-5)
        assert [rows(service)[name].samples for name in "ab"] == [20, 20]
        service.learner.ask("pause").result(10)
        assert send(service, "a", images(3)).learned == 0
        counters = service.learner.report().counters
        assert (counters.learned, counters.skipped) == (40, 3)
    with fleet_service(tmp_path, method, **settings) as again:
        send(again, "a", images(2))
        assert rows(again)["a"].samples == 22


def test_streams_that_arrive_together_are_learned_from_on_a_budget_and_the_rest_when_it_is_quiet(
    tmp_path: Path,
) -> None:
    with fleet_service(tmp_path, "tide", limits=Limits(batch=12, wait_ms=300)) as service:
        for future in [service.submit(images(2), TOKEN_HOLDER, name) for name in "abcdef"]:
            future.result(20)
        counters = service.learner.report().counters
        assert (counters.offered, counters.learned + counters.waiting) == (12, 12)
        until(lambda: service.learner.report().counters.learned == 12)
        assert [rows(service)[name].samples for name in "abcdef"] == [2] * 6


class Reshaped(nn.Module):
    """Gives its BatchNorm layer something else than one entry per image."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(300, 5)

    def forward(self, given: Tensor) -> Tensor:
        rows = self.norm(given.permute(0, 2, 3, 1).reshape(-1, 3))
        answer: Tensor = self.head(rows.reshape(len(given), -1))
        return answer


def test_a_model_that_mixes_the_images_of_a_batch_is_predicted_stream_by_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("tests.serve.fleets.small_network", Reshaped)
    with fleet_service(tmp_path) as service:
        assert service.learner.front is None
        send(service, "a", images(9))
        assert rows(service)["a"].updates == 1


def test_a_pass_for_each_stream_needs_room_for_a_batch(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="with tent a batch may hold 64 streams, max_streams is 8; raise it"):
        fleet_service(tmp_path, "tent", max_streams=8)
    with fleet_service(tmp_path, max_streams=1) as service:
        for name, batch in batches("abc", count=2):
            send(service, name, batch)
        assert [rows(service)[name].samples for name in "abc"] == [8, 8, 8]


def test_controls_concern_one_stream_or_all(tmp_path: Path) -> None:
    with fleet_service(tmp_path) as service:
        ask = service.learner.ask
        for name in "ab":
            send(service, name, images(10))
        ask("pause", "a").result(10)
        assert [send(service, name, images(2)).learned for name in "ab"] == [0, 2]
        assert [rows(service)[name].learning for name in "ab"] == [False, True]
        assert [len(found) for found in ask("bank", 5, "a").result(10)] == [5, 5, 5, 5]
        ask("pause").result(10)
        assert [send(service, name, images(2)).learned for name in "ab"] == [0, 0]
        assert service.learner.report().paused
        ask("resume").result(10)  # all of them, also a
        assert [send(service, name, images(2)).learned for name in "ab"] == [2, 2]
        ask("snapshot", "a").result(10)
        assert [path.name for path in tmp_path.glob("stream-*")] == ["stream-a.safetensors"]
        ask("reset", "a").result(10)
        assert list(service.fleet) == ["b"]
        assert not list(tmp_path.glob("stream-*"))
        with service.fleet.template.paused() as source:
            torch.testing.assert_close(send(service, "a", images(2)).logits, source(images(2)), rtol=1e-5, atol=1e-5)
        assert rows(service)["a"].samples == 2
        assert rows(service)["b"].samples == 14
        ask("reset").result(10)
        assert service.streams() == []


def test_a_full_disk_is_told_and_stops_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(save_every=0.01)
    with fleet_service(tmp_path, limits=limits, max_streams=2) as service:
        send(service, "a", images(4))
        until(lambda: list(service.fleet.files.names()) == ["a"] if service.fleet.files else False)
        saved = (tmp_path / "stream-a.safetensors").read_bytes()
        with monkeypatch.context() as disk:
            disk.setattr("resitta.checkpoint.atomic_write.os.fsync", fail)
            for name in "ab":
                assert send(service, name, images(4)).learned == 4
            until(lambda: service.learner.report().failed_saves >= 2)
            with pytest.raises(Refused, match="make room on the disk") as refused:
                service.learner.ask("snapshot").result(10)
            assert refused.value.status == 507
            assert len(send(service, "c", images(4)).logits) == 4  # there is no room for it now
            assert (tmp_path / "stream-a.safetensors").read_bytes() == saved
            assert [event.kind for event in service.events.newest()] == ["failure"]
        until(lambda: any(event.text.startswith("saving works again") for event in service.events.newest()))
        assert send(service, "c", images(4)).learned == 4
        assert {name: row.samples for name, row in rows(service).items()} == {"a": 8, "b": 4, "c": 4}


def test_a_guard_acts_on_its_stream_and_names_it(tmp_path: Path) -> None:
    with fleet_service(tmp_path, guard=True) as service:
        send(service, "calm", images(8))
        send(service, "dark", torch.zeros(8, 3, 10, 10))
        [event] = service.events.newest()
        assert (event.kind, event.text) == (
            "guard",
            "stream dark: 8 out-of-distribution images were not added to the memory",
        )
        assert service.stats()["guard_fired"]["unknown"] == 8
        assert len(service.learner.ask("bank", 9, "dark").result(10)[1]) == 0
        assert len(service.learner.ask("bank", 9, "calm").result(10)[1]) == 8
