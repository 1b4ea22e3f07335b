import base64

import httpx
import numpy as np
import pytest
import torch
from tests.serve.helpers import SIZE, array, picture, until

from resitta.serve import schema
from resitta.serve.images import Decoder
from resitta.serve.routes_predict import to_floats
from resitta.serve.service import Service

NAMES = ["ape", "bee", "cat", "doe", "elk"]


def post(client: httpx.Client, content: bytes, kind: str = "image/png") -> httpx.Response:
    return client.post("/predict", content=content, headers={"Content-Type": kind})


def test_every_form_gets_the_same_answer_as_the_model_itself(client: httpx.Client, service: Service) -> None:
    raw = [picture(seed=seed) for seed in range(3)]
    images = to_floats(torch.from_numpy(Decoder(size=SIZE)(raw)))
    with torch.no_grad():
        expected = service.adapter.source(images).double().softmax(dim=1).numpy()
    texts = [base64.b64encode(one).decode() for one in raw]
    answers = [
        [post(client, one).json()["predictions"][0] for one in raw],
        client.post("/predict", files=[("images", ("x.png", one)) for one in raw]).json()["predictions"],
        client.post("/predict", json={"images": texts}).json()["predictions"],
        post(client, array(images.numpy()), "application/x-npy").json()["predictions"],
        post(client, array(images.numpy()), "application/octet-stream; charset=x").json()["predictions"],
    ]
    for predictions in answers:
        assert np.allclose([one["probabilities"] for one in predictions], expected, atol=1e-5)
        assert [one["label"] for one in predictions] == expected.argmax(axis=1).tolist()
        assert [one["name"] for one in predictions] == [NAMES[label] for label in expected.argmax(axis=1)]
        assert np.allclose([one["confidence"] for one in predictions], expected.max(axis=1), atol=1e-5)
        nats = -(expected * np.log(expected)).sum(axis=1)
        assert np.allclose([one["entropy"] for one in predictions], nats, atol=1e-5)


def test_other_pictures(client: httpx.Client) -> None:
    for kind in ("JPEG", "WEBP"):
        answer = post(client, picture(kind, width=64, height=48), f"image/{kind.lower()}")
        assert answer.status_code == 200, kind
        assert answer.json()["learned"] == 1, kind


def test_the_version_advances_and_the_numbers_agree(client: httpx.Client, service: Service) -> None:
    versions = []
    for seed in range(40):
        versions.append(post(client, picture(seed=seed)).json()["version"])
        if seed % 8 == 7:
            until(lambda: service.writer.report().counters.waiting == 0)
    until(lambda: client.get("/stats").json()["adapter"]["samples"] == 40)
    stats = client.get("/stats").json()
    assert versions[0] == 0
    assert versions == sorted(versions)
    assert stats["version"] == stats["adapter"]["updates"] == 2
    assert stats["predicted"] == stats["offered"] == stats["learned"] == 40
    assert stats["adapter"]["bank"]["occupancy"] == 16
    history = client.get("/history").json()
    assert sum(point["images"] for point in history["points"]) == 40
    assert sum(history["classes"].values()) == 40
    metrics = client.get("/metrics").text
    for line in (
        "resitta_images_learned_total 40.0",
        "resitta_state_version 2.0",
        "resitta_predict_seconds_count 40.0",
    ):
        assert line in metrics


def test_an_answer_that_is_not_finite_is_told_and_leaves_no_trace(client: httpx.Client, service: Service) -> None:
    assert post(client, picture()).status_code == 200
    plain = service.readers[0].predict
    service.readers[0].predict = lambda images, *_: (torch.full((len(images), 5), torch.nan), 0, [False])
    answer = post(client, picture())
    service.readers[0].predict = plain
    assert answer.status_code == 500
    assert "not finite" in answer.json()["error"]
    assert post(client, picture()).status_code == 200
    assert sum(point["images"] for point in client.get("/history").json()["points"]) == 2
    assert "nan" not in client.get("/metrics").text.lower()


def test_health_and_readiness(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json() == {"status": "ready"}


def test_a_full_request_queue_is_answered_with_429(client: httpx.Client, service: Service) -> None:
    service.readers[0].waiting = service.limits.queue
    answer = post(client, picture())
    service.readers[0].waiting = 0
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert "waiting" in answer.json()["error"]
    assert post(client, picture()).status_code == 200
    assert 'resitta_refused_total{status="429"} 1.0' in client.get("/metrics").text


def test_pages_of_other_sites_are_refused(client: httpx.Client) -> None:
    headers = {"Content-Type": "image/png", "Sec-Fetch-Site": "cross-site"}
    answer = client.post("/predict", content=picture(), headers=headers)
    assert answer.status_code == 403
    assert "error" in answer.json()


def test_the_most_probable_classes_alone(client: httpx.Client) -> None:
    kind = {"Content-Type": "image/png"}
    (every,) = post(client, picture()).json()["predictions"]
    (found,) = client.post("/predict?top=2", content=picture(), headers=kind).json()["predictions"]
    order = np.argsort(every["probabilities"])[::-1][:2].tolist()
    assert found["top"] == [
        {"label": label, "name": NAMES[label], "probability": every["probabilities"][label]} for label in order
    ]
    assert found["top"][0]["label"] == found["label"] == every["label"]
    assert "probabilities" not in found
    assert "top" not in every
    (all_five,) = client.post("/predict?top=5", content=picture(), headers=kind).json()["predictions"]
    assert sorted(row["label"] for row in all_five["top"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("top", ["0", "6", "-1", "x", "1.5"])
def test_no_more_classes_than_there_are(client: httpx.Client, service: Service, top: str) -> None:
    answer = client.post(f"/predict?top={top}", content=picture(), headers={"Content-Type": "image/png"})
    assert answer.status_code == 422
    assert "query.top" in answer.json()["error"]
    assert service.predicted == 0


def test_the_schema_knows_how_many_classes_there_are(client: httpx.Client) -> None:
    (top,) = [
        p for p in client.get("/openapi.json").json()["paths"]["/predict"]["post"]["parameters"] if p["name"] == "top"
    ]
    assert top["schema"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 5}


def test_stats_and_history_are_as_documented(client: httpx.Client, service: Service) -> None:
    for seed in range(20):
        post(client, picture(seed=seed))
    until(lambda: client.get("/history").json()["adaptation"][-1]["updates"] == 1)
    stats = client.get("/stats").json()
    assert set(stats) <= set(schema.Stats.model_fields)
    assert set(stats["adapter"]) <= set(schema.AdapterStats.model_fields)
    found = schema.Stats.model_validate(stats)
    assert (found.model, found.settings, found.guard) == ("Sequential", {"update_every": 16, "capacity": 16}, None)
    assert found.adapter.relative_drift > 0
    for last, step in (("5min", 1), ("1h", 10)):
        history = client.get("/history", params={"last": last}).json()
        assert schema.History.model_validate(history).step == step
        assert sum(point["images"] for point in history["points"]) == 20
        assert sum(point["updates"] for point in history["adaptation"]) == 1
    assert client.get("/history?last=day").status_code == 422


def test_the_snapshots_have_times(holder: httpx.Client) -> None:
    version = holder.post("/snapshot").json()["version"]
    stats = holder.get("/stats").json()
    assert [str(version)] == list(stats["snapshot_times"])
    assert abs(stats["snapshot_times"][str(version)] - stats["events"][0]["time"]) < 10


def test_what_was_asked_for_has_a_kind_of_its_own(holder: httpx.Client) -> None:
    for task in ("snapshot", "pause", "resume", "rollback", "reset"):
        assert holder.post(f"/{task}").status_code == 200
    kinds = [event["kind"] for event in holder.get("/stats").json()["events"]]
    assert kinds == ["reset", "rollback", "resume", "pause", "control"]
