import itertools

import httpx
from tests.serve.helpers import TOKEN, picture, until

from resitta.serve.service import Service

CONTROLS = ["/pause", "/resume", "/reset", "/snapshot", "/rollback", "/feedback"]
WRONG = [None, "", TOKEN, "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer é"]


def predict(client: httpx.Client, seed: int = 0) -> dict[str, object]:
    found: dict[str, object] = client.post(
        "/predict", content=picture(seed=seed), headers={"Content-Type": "image/png"}
    ).json()
    return found


def test_controls_need_the_token(client: httpx.Client, service: Service) -> None:
    for path, header in itertools.product(CONTROLS, WRONG):  # one service for all: to start one takes most of the time
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        answer = client.post(path, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401, (path, header)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "token" in answer.json()["error"]
        assert not service.events.newest(), (path, header)


def test_the_images_in_the_memory_need_the_token(client: httpx.Client, holder: httpx.Client) -> None:
    predict(client)
    assert client.get("/bank").status_code == 401
    until(lambda: holder.get("/bank").json())
    sample = holder.get("/bank").json()[0]
    assert sample["image"].startswith("data:image/png;base64,")
    assert sample["age"] == 0


def test_pause_and_resume(client: httpx.Client, holder: httpx.Client, service: Service) -> None:
    assert holder.post("/pause").json() == {"version": 0, "learning": False}
    assert predict(client)["learned"] == 0
    assert client.get("/stats").json()["skipped"] == 1
    assert holder.post("/resume").json() == {"version": 0, "learning": True}
    assert predict(client)["learned"] == 1
    until(lambda: service.adapter.samples == 1)
    assert [event["text"] for event in client.get("/stats").json()["events"]] == ["learning resumed", "learning paused"]


def test_snapshot_rollback_and_reset(client: httpx.Client, holder: httpx.Client) -> None:
    assert holder.post("/rollback").status_code == 409
    assert holder.post("/snapshot").json()["version"] == 0
    assert client.get("/stats").json()["snapshots"] == [0]
    assert holder.post("/reset").json()["version"] == 1
    assert holder.post("/rollback?version=0").json()["version"] == 2
    assert holder.post("/rollback?version=7").status_code == 409
    for wrong in ("x", "-1", "1.5", "9" * 5000):
        answer = holder.post(f"/rollback?version={wrong}")
        assert answer.status_code == 422
        assert "version" in answer.json()["error"]


def test_a_damaged_newest_snapshot_is_skipped_and_named(holder: httpx.Client, service: Service) -> None:
    assert holder.post("/snapshot").json()["version"] == 0
    assert holder.post("/reset").json()["version"] == 1
    service.folder._file(1).write_bytes(b"damaged")
    answer = holder.post("/rollback")
    assert answer.status_code == 200
    assert answer.json() == {"version": 2, "learning": True, "snapshot": 0, "skipped": [1]}
    texts = [event["text"] for event in holder.get("/stats").json()["events"]]
    assert texts[0] == "rolled back to version 0, as version 2"
    assert "state-0000000001.safetensors is not a safetensors file" in texts[1]
    answer = holder.post("/rollback?version=1")
    assert answer.status_code == 409
    assert "state-0000000001.safetensors" in answer.json()["error"]
    for version in (0, 2):
        service.folder._file(version).write_bytes(b"damaged")
    assert holder.post("/rollback").status_code == 409
    assert holder.get("/stats").json()["version"] == 2
