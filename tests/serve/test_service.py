import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.helpers import SIZE, images, until, writer_of
from torch import nn

import resitta
from resitta.adapter import Adapter
from resitta.errors import BadImages, BadSetting
from resitta.serve.http_errors import Refused
from resitta.serve.learning import REFRESH
from resitta.serve.metrics import ServiceMetrics
from resitta.serve.service import Service
from resitta.serve.settings import Limits

Make = Callable[..., Service]


@pytest.fixture
def make(model: nn.Module, tmp_path: Path) -> Make:
    def make(method: str = "resitta", *, limits: Limits | None = None, **settings: Any) -> Service:
        adapter = resitta.adapt(model, method, **settings)
        return Service(adapter, size=SIZE, state=tmp_path, limits=limits or Limits(learn_batch=8))

    return make


def learned(service: Service, count: int) -> Callable[[], bool]:
    return lambda: service.writer.report().counters.learned == count


def test_the_adapter_can_be_used_after_the_service(make: Make) -> None:
    with make(update_every=8) as service:
        service.submit(images(8), "one").result(10)
        until(learned(service, 8))
    service.adapter(images(64, 1))
    assert service.adapter.samples == 72


def test_one_client_after_another_learns_what_the_plain_adapter_learns(make: Make, model: nn.Module) -> None:
    plain = resitta.adapt(model, "resitta", update_every=16)
    with make(update_every=16) as service:
        for seed in range(6):
            batch = images(8, seed)
            answer = service.submit(batch).result(10)
            assert torch.allclose(answer.logits, plain(batch), atol=1e-5)
            until(learned(service, 8 * (seed + 1)))
            assert service.writer.report().version == plain.stats.updates
    found, expected = service.adapter.stats, plain.stats
    assert found.bank is not None
    assert expected.bank is not None
    assert (found.samples, found.updates) == (expected.samples, expected.updates)
    assert found.bank.per_class == expected.bank.per_class
    assert found.mean_entropy == pytest.approx(expected.mean_entropy)
    assert found.drift == pytest.approx(expected.drift)


def test_predictions_never_wait_for_an_update(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(update_every=8)
    release, started = threading.Event(), threading.Event()

    def update() -> None:
        started.set()
        release.wait(30)

    monkeypatch.setattr(service.adapter.learner, "update", update)
    with service:
        service.submit(images(8)).result(10)
        assert started.wait(10)
        for _ in range(5):  # answered although an update is at work
            assert service.submit(images(8)).result(10).version == 0
        assert service.writer.report().counters.waiting == 48
        release.set()
        until(learned(service, 48))


def test_an_answer_comes_from_the_version_that_it_names(make: Make) -> None:
    batch = images(4)
    with make(update_every=8) as service:
        source = service.submit(batch).result(10)
        service.submit(batch).result(10)
        for version in range(1, 5):
            until(lambda: service.writer.report().counters.waiting == 0)
            assert service.writer.report().version == version
            first, second = service.submit(batch).result(10), service.submit(batch).result(10)
            assert first.version == version
            if second.version == version:
                assert torch.equal(first.logits, second.logits)
            assert not torch.equal(first.logits, source.logits)


def test_no_image_is_predicted_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(update_every=8)
    plain, seen = service.adapter.learner.predict, []

    def predict(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return plain(batch)

    monkeypatch.setattr(service.adapter.learner, "predict", predict)
    with service:
        for seed in range(4):
            service.submit(images(8, seed)).result(10)
            until(learned(service, 8 * (seed + 1)))
        assert seen == [8], "only a new learner's first batch, by the learner itself"
        assert service.writer.report().version == 4
        service.writer.ask("snapshot").result(10)
        service.writer.ask("rollback").result(10)
        for seed in range(2):
            service.submit(images(8, seed)).result(10)
            until(learned(service, 40 + 8 * seed))
    assert seen == [8, 8], "and the first after a rollback, which may come from the state left behind"


def test_a_model_that_insists_on_a_layout_learns_before_and_after_a_reset(tmp_path: Path) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.head = nn.BatchNorm2d(3), nn.Linear(3 * SIZE * SIZE, 5)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.head(self.bn(images).view(len(images), -1))
            return logits

    with Service(resitta.adapt(Viewing(), "resitta", update_every=8), size=SIZE, state=tmp_path) as service:
        for _ in range(2):
            for _ in range(3):
                service.submit(images(8)).result(10)
                until(lambda: service.writer.report().counters.waiting == 0)
            assert service.adapter.stats.updates == 3, service.events.newest()
            service.writer.ask("reset").result(10)


def test_a_full_learning_queue_drops_and_counts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(limits=Limits(learn_queue=10, learn_batch=4))
    with service:
        release = threading.Event()
        writer_of(service).thread.submit(lambda: release.wait(30))
        taken = [service.submit(images(4)).result(10).learned for _ in range(4)]
        release.set()
        until(learned(service, 10))
    assert taken == [4, 4, 2, 0]
    counters = service.writer.report().counters
    assert (counters.offered, counters.learned, counters.dropped, counters.waiting) == (16, 10, 6, 0)
    assert service.adapter.samples == 10


def test_pause_stands_still_and_resume_goes_on(make: Make) -> None:
    with make() as service:
        service.writer.ask("pause").result(10)
        assert service.submit(images(8)).result(10).learned == 0
        assert service.adapter.samples == 0
        service.writer.ask("resume").result(10)
        assert service.submit(images(8)).result(10).learned == 8
        until(learned(service, 8))
    assert service.writer.report().counters.skipped == 8


def test_snapshot_rollback_and_reset(make: Make) -> None:
    with make(update_every=8) as service:
        ask = service.writer.ask
        with pytest.raises(Refused, match="none yet"):
            ask("rollback").result(10)
        source = service.submit(images(4)).result(10).logits
        for seed in range(3):
            service.submit(images(8, seed)).result(10)
        until(learned(service, 28))
        saved = ask("snapshot").result(10)
        before = service.submit(images(4)).result(10).logits
        for seed in range(3, 9):
            service.submit(images(8, seed)).result(10)
        until(learned(service, 80))
        with pytest.raises(Refused, match=f"available: {saved}"):
            ask("rollback", saved + 1).result(10)
        version = ask("rollback", saved).result(10)["version"]
        assert version > saved
        assert torch.equal(service.submit(images(4)).result(10).logits, before)
        assert ask("reset").result(10) == version + 1
        assert torch.equal(service.submit(images(4)).result(10).logits, source)
        assert [event.text.split()[0] for event in service.events.newest()] == ["reset", "rolled", "version"]


def test_a_restart_goes_on_where_the_last_one_stopped(make: Make) -> None:
    with make(update_every=8) as first:
        for seed in range(3):
            first.submit(images(8, seed)).result(10)
        until(learned(first, 24))
        expected = first.submit(images(4)).result(10)
        until(learned(first, 28))
    with make(update_every=8) as second:
        assert second.adapter.samples == 28
        found = second.submit(images(4)).result(10)
    assert torch.equal(found.logits, expected.logits)
    assert found.version == expected.version == 3


def test_a_restart_after_a_rollback_stays_rolled_back(make: Make) -> None:
    with make(update_every=8) as first:
        ask = first.writer.ask
        ask("snapshot").result(10)
        first.submit(images(8)).result(10)
        until(learned(first, 8))
        ask("snapshot").result(10)
        ask("rollback", 0).result(10)
    assert make(update_every=8).adapter.samples == 0


def test_a_restart_tells_of_a_damaged_snapshot_and_does_not_use_its_number_again(make: Make, tmp_path: Path) -> None:
    with make(update_every=8) as first:
        first.submit(images(8)).result(10)
        until(learned(first, 8))
    first.folder._file(5).write_bytes(b"damaged")
    second = make(update_every=8)
    assert (second.adapter.samples, second.writer.report().version) == (8, 5)
    (event,) = second.stats()["events"]
    assert event["kind"] == "failure"
    assert "state-0000000005.safetensors" in event["text"]


def test_the_state_is_saved_from_time_to_time(make: Make) -> None:
    with make(update_every=8, limits=Limits(save_every=0.05, learn_batch=8)) as service:
        service.submit(images(8)).result(10)
        until(lambda: service.folder.versions() == [1])


def test_a_save_that_fails_is_told_and_tried_again(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make(update_every=8, limits=Limits(save_every=0.02, learn_batch=8))
    full = OSError(errno.ENOSPC, "No space left on device")
    with service:
        with monkeypatch.context() as disk:
            disk.setattr("resitta.checkpoint.atomic_write.os.fsync", raiser(full))
            service.submit(images(8)).result(10)
            until(lambda: service.stats()["failed_saves"] >= 3)
            with pytest.raises(Refused, match="could not be saved"):
                service.writer.ask("snapshot").result(10)
            service.submit(images(8, 1)).result(10)
            until(learned(service, 16))  # it goes on adapting
            assert service.ready
            assert service.folder.versions() == []
        until(lambda: service.folder.versions() == [2])
        until(lambda: len(service.events.newest()) == 2)
    assert "make room on the disk" in caplog.text
    again, failed = service.events.newest()
    assert again.text == "saving works again, version 2 saved"
    assert failed.kind == "failure"
    assert "the state is not saved" in failed.text


def test_a_state_folder_that_was_removed_is_made_again(make: Make, tmp_path: Path) -> None:
    with make(update_every=8, limits=Limits(save_every=0.02, learn_batch=8)) as service:
        until(service.folder.versions)
        shutil.rmtree(tmp_path)
        service.submit(images(8)).result(10)
        until(lambda: service.folder.versions() == [1])


def raiser(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_two_engines_never_share_a_folder(make: Make, tmp_path: Path) -> None:
    with make() as service:
        with pytest.raises(BadSetting, match="another Autosave or service of this process .* keeps its state"):
            make()
        assert service.ready
    with make() as service:
        assert service.ready


def test_a_failing_update_pauses_learning_and_predictions_go_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(update_every=8)
    monkeypatch.setattr(service.adapter.learner, "update", lambda: 1 // 0)
    with service:
        service.submit(images(8)).result(10)
        until(lambda: service.writer.report().paused)
        assert service.submit(images(4)).result(10).version == 0
        assert service.ready
        assert "ZeroDivisionError" in service.events.newest()[0].text


def test_statistics_that_cannot_be_taken_end_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(update_every=8, limits=Limits(learn_batch=8)) as service:
        with monkeypatch.context() as broken:
            broken.setattr(Adapter, "stats", property(lambda _: 1 // 0))
            until(service.events.newest)
            service.submit(images(8)).result(10)
            until(learned(service, 8))
            time.sleep(3 * REFRESH)
            assert service.ready
            assert service.stats()["adapter"]["samples"] == 0
        until(lambda: service.stats()["adapter"]["samples"] == 8)
        (event,) = service.events.newest()
        monkeypatch.setattr(Adapter, "stats", property(lambda _: 1 // 0))
        until(lambda: len(service.events.newest()) == 2)
    assert event.kind == "failure"
    assert event.text.startswith("the statistics are not updated: ZeroDivisionError")


def test_what_a_guard_does_is_told(make: Make) -> None:
    with make(update_every=8, guard=True) as service:
        service.submit(torch.zeros(8, 3, SIZE, SIZE)).result(10)
        until(lambda: service.stats()["events"])
    (event,) = service.stats()["events"]
    assert event["kind"] == "guard"
    assert event["text"] == "8 out-of-distribution images were not added to the memory"
    assert service.writer.report().version == 0


def test_without_a_guard_there_is_nothing_to_count(make: Make) -> None:
    with make() as service:
        assert service.stats()["guard_fired"] == {}


def test_what_a_guard_finds_is_counted_from_nought(make: Make) -> None:
    with make(update_every=8, guard=True) as service:
        reasons = ("unknown", "non-finite", "entropy", "drift", "diversity")
        assert service.stats()["guard_fired"] == dict.fromkeys(reasons, 0)
        assert 'resitta_guard_fired_total{reason="entropy"} 0.0' in ServiceMetrics(service).page().decode()
        for _ in range(3):
            service.submit(torch.zeros(8, 3, SIZE, SIZE)).result(10)
        until(lambda: service.stats()["guard_fired"]["unknown"] == 24)
        assert 'resitta_guard_fired_total{reason="unknown"} 24.0' in ServiceMetrics(service).page().decode()


@pytest.mark.parametrize("method", ["bn", "tent", "note", "cotta", "lame"])
def test_methods_that_cannot_be_exported_are_served_in_one_step(make: Make, method: str, model: nn.Module) -> None:
    plain = resitta.adapt(model, method)
    with make(method) as service:
        for seed in range(3):
            answer = service.submit(images(8, seed)).result(30)
            assert torch.allclose(answer.logits, plain(images(8, seed)), atol=1e-6)
        service.writer.ask("pause").result(10)
        assert service.submit(images(8, 9)).result(30).learned == 0
        assert service.stats()["predictions_wait_for_updates"]
    assert service.adapter.samples == service.writer.report().counters.learned == 24


def test_a_muted_client_is_predicted_and_not_learned_from_in_one_step_either(make: Make) -> None:
    with make("note", guard=True) as service:
        for seed in range(10):
            service.submit(images(4, seed), "good").result(30)
            service.submit(torch.zeros(16, 3, SIZE, SIZE), "bad").result(30)
        assert service.writer.report().muted == {"bad"}
        before = service.adapter.samples
        answer = service.submit(images(8), "bad").result(30)
        assert (len(answer.logits), answer.learned, service.adapter.samples) == (8, 0, before)
        assert service.submit(images(8), "good").result(30).learned == 8
        assert service.adapter.samples == before + 8
        counters = service.writer.report().counters
    assert counters.screened > 8
    assert counters.offered == counters.learned + counters.screened


def test_the_metrics_count_screened_images_and_name_no_client(make: Make) -> None:
    with make(update_every=8, guard=True) as service:
        for seed in range(4):
            service.submit(images(4, seed), "192.0.2.1").result(10)
            service.submit(torch.zeros(24, 3, SIZE, SIZE), "192.0.2.2").result(10)
            until(lambda: service.writer.report().counters.waiting == 0)
        page = ServiceMetrics(service).page().decode()
    screened = service.writer.report().counters.screened
    assert f"resitta_images_screened_total {float(screened)}" in page
    assert "resitta_clients_muted 1.0" in page
    assert all(client["name"] not in page for client in service.writer.report().clients)


def test_many_threads_lose_and_double_nothing(make: Make) -> None:
    with make(limits=Limits(learn_queue=5000, queue=5000)) as service:

        def client(seed: int) -> None:
            for number in range(20):
                service.submit(images(1 + (seed + number) % 3, seed)).result(30)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = sum(1 + (seed + number) % 3 for seed in range(8) for number in range(20))
        until(learned(service, total))
    memory = service.adapter.learner.memory()
    assert memory is not None
    assert memory.clock == service.adapter.samples == service.predicted == total


def test_unsuitable_models_and_names_are_refused_at_the_start(model: nn.Module, tmp_path: Path) -> None:
    grey = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(BadImages, match="refused images of shape"):
        Service(resitta.adapt(grey, "resitta"), size=SIZE, state=tmp_path)
    with pytest.raises(BadSetting, match="has 5 classes, found 2 names"):
        Service(resitta.adapt(model, "resitta"), size=SIZE, state=tmp_path, names=["a", "b"])
