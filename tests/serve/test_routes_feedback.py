"""Labels that arrive later, over HTTP, and the comparison that the service reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.serve.conftest import serving
from tests.serve.helpers import SIZE, TOKEN, array, images, until
from torch import nn

import resitta
from resitta.errors import BadSetting
from resitta.serve.app import create_app
from resitta.serve.service import Service
from resitta.serve.settings import Limits

NAMES = ["ape", "bee", "cat", "doe", "elk"]


@pytest.fixture
def service(model: nn.Module, limits: Limits, tmp_path: Path) -> Service:
    adapter = resitta.adapt(model, "resitta", update_every=16, capacity=16, shadow=1.0, fallback=True)
    return Service(adapter, size=SIZE, state=tmp_path / "state", limits=limits, names=NAMES)


def predict(client: httpx.Client, n: int = 8, seed: int = 0) -> dict[str, Any]:
    npy = array(images(n, seed).numpy())
    found: dict[str, Any] = client.post("/predict", content=npy, headers={"Content-Type": "application/x-npy"}).json()
    return found


def ids_of(answer: dict[str, Any]) -> list[str]:
    return [prediction["id"] for prediction in answer["predictions"]]


def test_labels_reach_the_images_they_belong_to(client: httpx.Client, holder: httpx.Client) -> None:
    first, second = predict(client), predict(client, seed=1)
    ids = ids_of(first) + ids_of(second)
    assert len(set(ids)) == 16
    assert all(prediction["compared"] for prediction in first["predictions"])
    assert first["fallback"] is False
    labels = [prediction["name"] for answer in (first, second) for prediction in answer["predictions"]]
    answer = holder.post("/feedback", json={"ids": [*ids, "0-1", "anything"], "labels": [*labels, 0, 0]})
    assert answer.status_code == 200
    assert answer.json() == {"used": 16, "not_compared": 0, "unknown": 2, "falling_back": False}
    until(lambda: client.get("/stats").json()["shadow"]["feedback"]["unknown"] == 2)
    shadow = client.get("/stats").json()["shadow"]
    assert shadow["feedback"]["running"]["adapted"]["value"] == 1.0
    assert shadow["predicted"] == shadow["running"]["compared"] == 16
    metrics = client.get("/metrics").text
    for line in ("resitta_feedback_used_total 16.0", 'resitta_shadow_accuracy{network="adapted"} 1.0'):
        assert line in metrics


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"ids": ["a-1"], "labels": [0, 1]}, 400, "there are 1 ids and 2 labels"),
        ({"ids": ["a-1"], "labels": [5]}, 400, "the model's 5 classes, from 0 on, found 5"),
        ({"ids": ["a-1"], "labels": ["cta"]}, 400, "no class is called 'cta'. Did you mean 'cat'?"),
        ({"ids": ["a-1"], "labels": [0.5]}, 422, "labels.0"),
        ({"ids": ["a-1"], "labels": [True]}, 422, "labels.0"),
        ({"ids": [1], "labels": [0]}, 422, "ids.0"),
        ({"ids": [], "labels": []}, 422, "ids: List should have at least 1 item"),
        ({"ids": ["a-1"]}, 422, "labels: Field required"),
        ({"ids": ["a-1"], "labels": [0], "more": 1}, 422, "more"),
    ],
)
def test_bad_labels_are_refused(
    client: httpx.Client, holder: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    predict(client)
    answer = holder.post("/feedback", json=body)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.json()


def test_other_bodies_are_refused_and_the_token_is_needed(client: httpx.Client, holder: httpx.Client) -> None:
    assert client.post("/feedback", json={"ids": ["a-1"], "labels": [0]}).status_code == 401
    headers = {"Content-Type": "image/png"}
    assert holder.post("/feedback", content=b"{}", headers=headers).status_code == 415
    headers = {"Content-Type": "application/json"}
    assert holder.post("/feedback", content=b"{", headers=headers).status_code == 422
    assert holder.post("/feedback", content=b"x" * 200_001, headers=headers).status_code == 413


def test_the_source_answers_while_it_is_better_and_again_not_after_a_reset(
    client: httpx.Client, holder: httpx.Client, service: Service, model: nn.Module
) -> None:
    reader = service.readers[0]
    plain = reader.predict
    wrong = torch.eye(5)[[4]] * 9
    reader.predict = lambda batch, clients, correct: (
        wrong.expand(len(batch), 5).clone(),
        *plain(batch, clients, correct)[1:],
    )
    with torch.no_grad():
        labels = model(images(8)).argmax(1)
    labels = labels.where(labels != 4, 0).tolist()
    assert predict(client)["predictions"][0]["label"] == 4
    found: dict[str, Any] = {}
    for _ in range(8):
        found = holder.post("/feedback", json={"ids": ids_of(predict(client)), "labels": labels}).json()
    assert found["falling_back"]
    answer = predict(client)
    assert answer["fallback"] is True
    with torch.no_grad():
        expected = model(images(8)).softmax(1)
    assert torch.allclose(torch.tensor([each["probabilities"] for each in answer["predictions"]]), expected, atol=1e-5)
    assert answer["learned"] == 8, "learning continues"
    stats = client.get("/stats").json()
    assert "the source model answers now" in stats["events"][0]["text"]
    points = client.get("/history").json()["shadow"]
    assert points[-1]["falling_back"] is True
    assert points[-1]["source_accuracy"] > points[-1]["adapted_accuracy"]
    old = ids_of(answer)
    reader.predict = plain
    assert holder.post("/reset").status_code == 200
    assert predict(client)["fallback"] is False
    assert holder.post("/feedback", json={"ids": old, "labels": labels}).json()["unknown"] == 8


def test_a_fallback_outlives_a_restart(model: nn.Module, limits: Limits, tmp_path: Path) -> None:
    def make() -> Service:
        adapter = resitta.adapt(model, "resitta", shadow=0.5, fallback=True)
        return Service(adapter, size=SIZE, state=tmp_path / "state", limits=limits)

    with make() as service:
        assert service.adapter.shadow is not None
        service.adapter.shadow.falling_back = True
        service.submit(images(8)).result(20)
    with make() as service:
        answer = service.submit(images(8)).result(20)
        with torch.no_grad():
            assert torch.allclose(answer.logits, model(images(8)), atol=1e-6)
        assert answer.fallback
        assert answer.ids[0].endswith("-8")


@pytest.fixture
def without(model: nn.Module, limits: Limits, tmp_path: Path) -> Iterator[httpx.Client]:
    service = Service(resitta.adapt(model, "resitta"), size=SIZE, state=tmp_path / "other", limits=limits)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        serving(create_app(service, token=TOKEN)) as url,
        httpx.Client(base_url=url, timeout=30, headers=headers) as client,
    ):
        yield client


def test_without_a_shadow_labels_have_no_use(without: httpx.Client) -> None:
    answer = predict(without)
    assert "fallback" not in answer
    assert "id" not in answer["predictions"][0]
    refused = without.post("/feedback", json={"ids": ["a-1"], "labels": [0]})
    assert refused.status_code == 409
    assert "start the service with --shadow" in refused.json()["error"]
    assert without.get("/stats").json()["shadow"] is None
    assert without.get("/history").json()["shadow"] == []


def test_readers_in_other_processes_are_refused(model: nn.Module, tmp_path: Path) -> None:
    from resitta.distributed.ray_serve import ray_service

    with pytest.raises(BadSetting, match="shadow needs readers in the process that learns"):
        ray_service(lambda: resitta.adapt(model, "resitta", shadow=0.5), size=SIZE, state=tmp_path / "state")
