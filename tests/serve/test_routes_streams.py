"""A fleet over HTTP: how requests name their stream, the list of streams, and the controls of one."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.serve.conftest import serving
from tests.serve.fleets import fleet_service, settle
from tests.serve.helpers import TOKEN, picture

from resitta.serve.app import create_app
from resitta.serve.fleet_service import FleetService

PNG = {"Content-Type": "image/png"}
HOLDER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def fleet(tmp_path: Path) -> FleetService:
    return fleet_service(tmp_path)


@pytest.fixture
def http(fleet: FleetService) -> Iterator[httpx.Client]:
    with serving(create_app(fleet, token=TOKEN)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def predict(http: httpx.Client, path: str = "/predict", **headers: str) -> httpx.Response:
    return http.post(path, content=picture(), headers=PNG | headers)


def names(http: httpx.Client, **parameters: int) -> list[str]:
    return [row["name"] for row in http.get("/streams", params=parameters).json()["streams"]]


def test_a_request_names_its_stream_in_a_header_or_a_parameter(http: httpx.Client, fleet: FleetService) -> None:
    theirs = fleet.stream_names.of("127.0.0.1", "yard")
    for answer, name in (
        (predict(http, **HOLDER, **{"X-Stream": "gate"}), "gate"),
        (predict(http, "/predict?stream=yard", **HOLDER), "yard"),
        (predict(http, "/predict?stream=yard", **HOLDER, **{"X-Stream": "yard"}), "yard"),
        (predict(http, **HOLDER), "default"),
        (predict(http, "/predict?stream=yard"), theirs),
    ):
        assert answer.status_code == 200
        assert answer.json()["learned"] == 1
        assert answer.headers["X-Stream"] == name
    tensors = [{"name": "images", "shape": [1, 3, 10, 10], "datatype": "FP32", "data": [0.5] * 300}]
    answer = http.post("/v2/models/resitta/infer?stream=gate", json={"inputs": tensors}, headers=HOLDER)
    assert (answer.status_code, answer.headers["X-Stream"]) == (200, "gate")
    settle(fleet)
    listed = http.get("/streams").json()
    assert {row["name"]: row["samples"] for row in listed["streams"]} == {
        "default": 1,
        "gate": 2,
        "yard": 2,
        theirs: 1,
    }
    assert listed["total"] == 4
    assert "/streams" in http.get("/openapi.json").json()["paths"]
    assert set(listed["streams"][0]) == {
        *("name", "samples", "updates", "mean_entropy", "drift", "waiting", "learning", "in_memory")
    }
    assert names(http, limit=2) == ["default", "gate"]


def test_bad_names_are_refused(http: httpx.Client) -> None:
    for answer in (predict(http, **{"X-Stream": "a/b"}), predict(http, "/predict?stream=a%20b")):
        assert answer.status_code == 400
        assert "must be 1 to 64 of the characters" in answer.json()["error"]
    answer = predict(http, "/predict?stream=a", **{"X-Stream": "b"})
    assert answer.status_code == 400
    assert "belongs to one stream, found X-Stream 'b' and stream 'a'; leave out one" in answer.json()["error"]
    assert names(http) == []
    assert http.get("/streams?limit=0").status_code == 422


def test_controls_of_one_stream_need_the_token_and_a_name_that_is_known(
    http: httpx.Client, fleet: FleetService
) -> None:
    predict(http, "/predict?stream=gate", **HOLDER)
    settle(fleet)
    assert http.post("/reset?stream=gate").status_code == 401
    for path in ("/pause", "/snapshot", "/resume", "/bank"):
        send = http.get if path == "/bank" else http.post
        answer = send(f"{path}?stream=yard", headers=HOLDER)
        assert answer.status_code == 404
        assert answer.json()["error"] == "there is no stream called 'yard'; GET /streams lists them"
    assert http.post("/pause?stream=gate", headers=HOLDER).json()["learning"] is True
    assert http.get("/streams").json()["streams"][0]["learning"] is False
    assert len(http.get("/bank?stream=gate", headers=HOLDER).json()) == 1
    assert "name one: /bank?stream=NAME" in http.get("/bank", headers=HOLDER).json()["error"]
    assert http.post("/snapshot?stream=gate", headers=HOLDER).status_code == 200
    assert http.post("/rollback", headers=HOLDER).status_code == 409
    assert http.post("/reset?stream=gate", headers=HOLDER).status_code == 200
    assert names(http) == []
    labels = http.post("/feedback", json={"ids": ["0-1"], "labels": [1]}, headers=HOLDER)
    assert (labels.status_code, "--fleet" in labels.json()["error"]) == (409, True)


def test_a_control_with_the_header_of_a_stream_concerns_that_stream_alone(
    http: httpx.Client, fleet: FleetService
) -> None:
    for stream in ("gate", "yard"):
        predict(http, f"/predict?stream={stream}", **HOLDER)
    settle(fleet)
    assert http.post("/reset", headers=HOLDER | {"X-Stream": "gate"}).status_code == 200
    assert names(http) == ["yard"]
    answer = http.post("/reset?stream=yard", headers=HOLDER | {"X-Stream": "gate"})
    assert (answer.status_code, "concerns one stream" in answer.json()["error"]) == (400, True)
    assert names(http) == ["yard"]


def test_statistics_and_metrics_are_totals_and_only_named_streams_have_series(
    http: httpx.Client, fleet: FleetService
) -> None:
    for stream in ("gate", "yard"):
        for _ in range(8):
            predict(http, f"/predict?stream={stream}", **HOLDER)
    predict(http)
    settle(fleet)
    stats = http.get("/stats").json()
    assert (stats["predicted"], stats["learned"], stats["adapter"]["samples"]) == (17, 17, 17)
    assert stats["adapter"]["updates"] == 2
    page = http.get("/metrics").text
    for line in (
        "resitta_updates 2.0",
        "resitta_streams 3.0",
        "resitta_streams_in_memory 3.0",
        "resitta_streams_paused 0.0",
        'resitta_stream_images_total{stream="gate"} 8.0',
    ):
        assert f"\n{line}\n" in page
    assert page.count("resitta_stream_drift{") == 2


def test_a_service_of_one_stream_lists_none_and_takes_no_name_in_its_controls(client: httpx.Client) -> None:
    assert client.get("/streams").status_code == 404
    assert "/streams" not in client.get("/openapi.json").json()["paths"]
    answer = client.post("/pause?stream=gate", headers=HOLDER)
    assert (answer.status_code, "leave out stream=" in answer.json()["error"]) == (409, True)
    assert predict(client, "/predict?stream=gate").status_code == 200
