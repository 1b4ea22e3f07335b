"""A service of one writer and two readers on a Ray cluster of this machine, or its stand-in; parts of it are killed."""

import importlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapter.test_settings_of_every_method import colours, reader_of_colours
from tests.distributed.stand_in import StandIn
from torch import Tensor

import resitta
from resitta.conformance import tiny_network
from resitta.distributed.ray_serve import ray_service
from resitta.errors import BadSetting
from resitta.serve.http_errors import Refused
from resitta.serve.settings import Limits

try:
    ray: Any = importlib.import_module("ray")
except ImportError:
    ray = StandIn()
SIZE = 16


def make(method: str = "resitta") -> Callable[[], resitta.Adapter]:
    return partial(resitta.adapt, tiny_network(), method)


def images(seed: int) -> Tensor:
    return torch.rand(16, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        with ray_service(make(), size=SIZE, state=state, readers=2, limits=Limits(save_every=3600)) as service:
            yield service
    assert not ray.is_initialized(), "our own cluster ends with the service"
    assert list(state.glob("*.safetensors")), "the state was saved at the end"


def readers(service: Any) -> list[Any]:
    """The readers' actors."""
    actors: list[Any] = service.readers[0].predict.func.__self__.actors
    return actors


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.slow
def test_readers_follow_the_writer(service: Any) -> None:
    source = service.submit(images(0)).result()
    assert source.version == 0
    assert source.learned == 16
    torch.testing.assert_close(source.logits, tiny_network()(images(0)), rtol=1e-4, atol=1e-5)
    for seed in range(1, 8):  # 128 samples: two updates
        service.submit(images(seed)).result()
    until(lambda: service.stats()["readers"] == [2, 2])
    later = service.submit(images(0)).result()
    assert later.version == 2
    assert not torch.equal(later.logits, source.logits)
    until(lambda: service.stats()["learned"] == 9 * 16)
    stats = service.stats()
    assert stats["predicted"] == stats["offered"] == stats["adapter"]["samples"] == 9 * 16


@pytest.mark.slow
def test_both_readers_predict_what_one_process_would(service: Any) -> None:
    alone = make()()
    for seed in range(8):
        alone(images(seed))
    until(lambda: service.stats()["version"] == 2)
    with alone.paused():
        expected = alone(images(3))
    for actor in readers(service):
        logits, version = ray.get(actor.predict.remote(images(3).numpy()))
        assert version == 2
        torch.testing.assert_close(torch.tensor(logits), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_killed_writer_is_restored_and_readers_go_on(service: Any) -> None:
    saved = service.writer.ask("snapshot").result()
    for seed in range(20, 24):
        service.submit(images(seed)).result()
    until(lambda: service.stats()["version"] > saved)
    ray.kill(service.writer.actor, no_restart=False)
    versions = []

    def back() -> bool:
        versions.append(service.submit(images(30)).result(timeout=10).version)
        return "the writer was lost; it is back" in str(service.stats()["events"])

    until(back)
    assert all(version >= saved for version in versions), "no answer came from before the snapshot"
    assert service.stats()["adapter"]["updates"] >= saved, "it went on from the snapshot, not from the source"

    def advanced() -> bool:
        service.submit(images(40)).result(timeout=10)
        return bool(min(service.stats()["readers"]) > max(versions))

    until(advanced)


@pytest.mark.slow
def test_the_requests_of_a_killed_reader_are_answered_by_another(service: Any) -> None:
    ray.kill(readers(service)[0], no_restart=False)
    answers = [service.submit(images(seed)) for seed in range(10)]
    assert all(answer.result(timeout=30).version > 0 for answer in answers)

    def caught_up() -> bool:
        try:
            return bool(ray.get(readers(service)[0].version.remote()) == service.stats()["version"])
        except ray.exceptions.RayActorError:  # it is being restarted
            return False

    until(caught_up)


@pytest.mark.slow
def test_the_writer_is_controlled_from_afar(service: Any) -> None:
    service.writer.ask("pause").result()
    assert service.stats()["learning"] is False
    assert service.submit(images(1)).result().learned == 0
    service.writer.ask("resume").result()
    assert service.stats()["learning"] is True
    before = service.writer.report().version
    assert service.writer.ask("reset").result() == before + 1
    until(lambda: service.stats()["readers"] == [before + 1] * 2)
    torch.testing.assert_close(
        service.submit(images(0)).result().logits, tiny_network()(images(0)), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(Refused, match="no snapshot of version 99999") as refused:
        service.writer.ask("rollback", 99999).result()
    assert refused.value.status == 409
    assert len(service.writer.ask("bank", 5).result()) == 4


@pytest.mark.slow
def test_it_stands_behind_the_same_http(service: Any) -> None:
    httpx_client = pytest.importorskip("fastapi.testclient").TestClient
    from resitta.serve.app import create_app

    client = httpx_client(create_app(service, token="secret"), base_url="http://127.0.0.1")
    array = io.BytesIO()
    np.save(array, images(5).mul(255).byte().permute(0, 2, 3, 1).numpy())
    answer = client.post("/predict", content=array.getvalue(), headers={"content-type": "application/x-npy"})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == 16
    assert answer.json()["version"] > 0
    assert client.get("/ready").json() == {"status": "ready"}
    assert "resitta_state_version" in client.get("/metrics").text
    assert "guard_fired" in client.get("/stats").json()
    holder = {"authorization": "Bearer secret"}
    assert client.post("/snapshot", headers=holder).json()["learning"] is True
    assert client.post("/rollback?version=99999", headers=holder).status_code == 409
    assert client.get("/bank", headers=holder).status_code == 200


@pytest.mark.parametrize(
    ("method", "readers", "words"),
    [("resitta", 0, "readers must be at least 1, found 0"), ("tent", 1, "tent predicts and learns in one step")],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, method: str, readers: int, words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        ray_service(make(method), size=SIZE, state=tmp_path, readers=readers)


def test_named_streams_are_corrected_whichever_reader_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(ray, StandIn):
        pytest.skip("what is tested happens in this process; another cluster of Ray takes long to start")
    monkeypatch.setitem(sys.modules, "ray", ray)
    labels = torch.arange(900) // 50 % 3
    build = partial(resitta.adapt, reader_of_colours(), "rotta", label_prior="temporal", feedback=True)
    limits = Limits(save_every=3600, wait_ms=0)
    with ray_service(build, size=4, state=tmp_path, readers=2, limits=limits) as service:
        for number, batch in enumerate(torch.split(colours(labels), 30)):
            service.readers[number % 2].submit(batch, "me", "door").result(30)
        told = service.stats()["adapter"]["label_prior"]
        assert (told["streams"], told["samples"]) == (1, 900)
        assert told["corrected"] > 100
