"""Each stream of a service adapts by itself: it is what an adapter of its own would be, whatever the others send."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network
from tests.serve.fleets import (
    QUICK,
    TOKEN_HOLDER,
    answers,
    batches,
    fleet_service,
    learning_fails,
    replaced,
    rows,
    send,
    settle,
)
from tests.serve.helpers import SIZE, images
from torch import Tensor, nn

import resitta
from resitta.errors import BadSetting, BadState
from resitta.serve.fleet_service import FleetService
from resitta.serve.http_errors import Refused
from resitta.serve.service import Service
from resitta.serve.settings import Limits


def noise(batch: Tensor) -> Tensor:
    return torch.rand(batch.shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("options", [{}, {"guard": True}])
def test_every_stream_is_an_adapter_of_its_own(tmp_path: Path, options: dict[str, Any]) -> None:
    separate = {name: resitta.adapt(small_network(), "resitta", **QUICK, **options) for name in "abc"}
    with fleet_service(tmp_path, **options) as service:
        for name, batch in batches("abc", count=8):
            torch.testing.assert_close(send(service, name, batch).logits, separate[name](batch), rtol=1e-5, atol=1e-5)
        found = rows(service)
    for name, adapter in separate.items():
        assert (found[name].samples, found[name].updates) == (32, adapter.learner.updates)
        assert found[name].mean_entropy == pytest.approx(adapter.mean_entropy, rel=1e-4)
        assert adapter.learner.updates == 4
    assert len({found[name].drift for name in "abc"}) == 3


@pytest.mark.parametrize("method", ["rotta", "tribe"])
def test_methods_that_learn_from_predictions_made_elsewhere_do(tmp_path: Path, method: str) -> None:
    own = QUICK if method == "rotta" else {}
    separate = {name: resitta.adapt(small_network(), method, **own) for name in "ab"}
    with fleet_service(tmp_path, method, **own) as service:
        for name, batch in batches("ab", count=5, each=8):
            logits = separate[name].learner.predict(batch).detach()
            torch.testing.assert_close(send(service, name, batch).logits, logits, rtol=1e-4, atol=1e-4)
            separate[name].learn_from(batch, logits)
        updates = [rows(service)[name].updates for name in "ab"]
    assert updates == [adapter.learner.updates for adapter in separate.values()] != [0, 0]


def test_images_of_many_streams_that_arrive_together_are_predicted_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_service(tmp_path, limits=Limits(batch=12, wait_ms=300)) as service:
        for name, batch in batches("abc", count=1, each=8):
            send(service, name, batch)
        passes: list[int] = []
        front = service.learner.front
        assert front is not None
        predict = front.one_pass.predict

        def counted(given: Tensor, places: list[int]) -> Tensor:
            passes.append(len(given))
            return predict(given, places)

        monkeypatch.setattr(front.one_pass, "predict", counted)
        with torch.inference_mode():
            service.learner.ask("pause").result(10)
            waiting = [(name, service.submit(images(4), TOKEN_HOLDER, name)) for name in "abc"]
            for name, future in waiting:
                expected = service.fleet[name].adapter.learner.predict(images(4))
                torch.testing.assert_close(future.result(10).logits, expected, rtol=1e-5, atol=1e-5)
    assert passes == [12]


def test_noise_of_one_stream_changes_no_bit_of_the_others(tmp_path: Path) -> None:
    feed = batches("abn", count=8)
    with fleet_service(tmp_path / "calm") as calm:
        expected = answers(calm, feed, of="ab")
        samples = rows(calm)
    with fleet_service(tmp_path / "noisy") as noisy:
        found = answers(noisy, replaced(feed, "n", noise), of="ab")
        assert noisy.ready
        assert [rows(noisy)[name] for name in "ab"] == [samples[name] for name in "ab"]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert rows(noisy)["a"].updates == 4


@pytest.mark.parametrize("method", ["resitta", "tent"])
def test_a_stream_that_fails_to_learn_is_paused_and_changes_no_bit_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    feed = batches("abx", count=6)
    with fleet_service(tmp_path / "calm", method) as calm:
        expected = answers(calm, feed, of="ab")
    with fleet_service(tmp_path / "failing", method) as service:
        send(service, "x", images(4))
        learning_fails(monkeypatch, service.fleet, "x", "step" if method == "tent" else "learn_from")
        found = answers(service, feed, of="ab")
        assert service.ready
        assert rows(service)["x"].learning is False
        assert rows(service)["x"].samples == 4
        assert [rows(service)[name].samples for name in "ab"] == [24, 24]
        texts = [event.text for event in service.events.newest()]
        assert texts == ["stream x: learning failed and is paused: RuntimeError: no memory left"]
        assert send(service, "x", images(4)).learned == 0
        monkeypatch.undo()
        service.learner.ask("resume", "x").result(10)
        assert send(service, "x", images(4)).learned == 4
        assert rows(service)["x"].samples == 8
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_names_belong_to_their_client_and_those_with_the_token_to_all_who_have_it(tmp_path: Path) -> None:
    with fleet_service(tmp_path) as service:
        for client in ("192.0.2.1", "192.0.2.2", "token:aa", "token:aa"):
            send(service, "gate", images(2), client)
        for client in ("192.0.2.1", "token:aa"):
            send(service, "", images(1), client)
        found = rows(service)
        pseudonyms = sorted({name.partition("/")[0] for name in found if "/" in name})
    first = service.stream_names.of("192.0.2.1", "").partition("/")[0]
    assert len(pseudonyms) == 2
    assert {name: row.samples for name, row in found.items()} == {
        "default": 1,
        "gate": 4,
        f"{first}/default": 1,
        **{f"{pseudonym}/gate": 2 for pseudonym in pseudonyms},
    }
    assert list(found)[:2] == ["default", "gate"]
    assert "192" not in str(found)


@pytest.mark.parametrize("method", ["resitta", "tent"])
def test_a_client_that_invents_names_loses_streams_of_its_own(tmp_path: Path, method: str) -> None:
    limits = Limits(streams=5, save_every=3600, batch=8, max_images=8)
    with fleet_service(tmp_path, method, limits=limits, max_streams=8) as service:
        send(service, "mine", images(2), "192.0.2.1")
        for name in "ab":
            send(service, name, images(2))
        for number in range(100):
            service.submit(images(1), "192.0.2.2", f"invented-{number}").result(20)
        settle(service)
        found = rows(service)
        assert len(found) == 2 + 5
        assert {"a", "b", service.stream_names.of("192.0.2.1", "mine")} < set(found)
        assert service.stream_names.of("192.0.2.2", "invented-99") in found
        send(service, "a", images(2))
        assert rows(service)["a"].samples == 4
    assert len(service.fleet) == len(list(tmp_path.glob("stream-*.safetensors"))) == 7
    assert len(service.fleet._pauses) == 0


def test_streams_go_to_the_folder_and_come_back_exactly_also_after_a_restart(tmp_path: Path) -> None:
    feed = batches("abcd", count=8)
    with fleet_service(tmp_path / "roomy") as roomy:
        expected = answers(roomy, feed, of="abcd")
    found: list[Tensor] = []
    for part in (feed[:14], feed[14:]):
        with fleet_service(tmp_path / "small", max_streams=2) as small:
            found += answers(small, part, of="abcd")
            assert sum(row.in_memory for row in small.streams()) == 2
            assert {row.name for row in small.streams()} == set("abcd")
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [rows(small)[name].samples for name in "abcd"] == [32] * 4


def test_a_damaged_file_concerns_its_stream_alone(tmp_path: Path) -> None:
    with fleet_service(tmp_path) as service:
        for name, batch in batches("abc", count=3):
            send(service, name, batch)
    (tmp_path / "stream-b.safetensors").write_bytes(b"damaged")
    with fleet_service(tmp_path) as service:
        with service.fleet.template.paused() as source:
            torch.testing.assert_close(send(service, "b", images(2)).logits, source(images(2)), rtol=1e-5, atol=1e-5)
        assert send(service, "b", images(2)).learned == 0
        assert send(service, "a", images(2)).learned == 2
        assert rows(service)["a"].samples == 14
        assert rows(service)["b"].learning is False
        [event] = service.events.newest()
        assert event.kind == "failure"
        assert "stream b: it is predicted by the source; put back its file" in event.text
        assert (tmp_path / "stream-b.safetensors").read_bytes() == b"damaged"
        service.learner.ask("reset", "b").result(10)
        assert send(service, "b", images(2)).learned == 2
        assert rows(service)["b"].samples == 2


def test_a_folder_of_another_model_or_of_a_service_of_one_stream_is_refused(tmp_path: Path, model: nn.Module) -> None:
    with fleet_service(tmp_path / "streams") as service:
        send(service, "a", images(2))
    with pytest.raises(BadState, match=r"stream-a.safetensors"):
        fleet_service(tmp_path / "streams", capacity=16)
    with pytest.raises(BadSetting, match="holds the streams of a fleet; serve it with --fleet"):
        Service(resitta.adapt(model, "resitta"), size=SIZE, state=tmp_path / "streams")
    with Service(resitta.adapt(model, "resitta"), size=SIZE, state=tmp_path / "single") as single:
        single.writer.ask("snapshot").result(10)
    with pytest.raises(BadSetting, match="holds the snapshots of a service of one stream"):
        fleet_service(tmp_path / "single")
    with pytest.raises(BadSetting, match="pass folder= to resitta.fleet"):
        FleetService(resitta.fleet(model), size=SIZE)
    with fleet_service(tmp_path / "streams") as service:  # no refusal holds the folder
        assert list(service.fleet) == ["a"]


def test_labels_and_versions_are_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    with fleet_service(tmp_path) as service:
        with pytest.raises(Refused, match="serve without --fleet") as refused:
            service.feedback(["0-1"], [1])
        assert refused.value.status == 409
        with pytest.raises(Refused, match=r"POST /reset\?stream=NAME") as refused:
            service.learner.ask("rollback").result(10)
        assert refused.value.status == 409
