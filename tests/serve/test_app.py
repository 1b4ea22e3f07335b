"""Pages and error responses."""

import threading

import httpx
import pytest
from tests.serve.helpers import TOKEN, picture, writer_of

from resitta.serve.service import Service
from resitta.serve.settings import Limits


def test_a_page_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    for path in ("/", "/docs", "/page.css", "/page.js", "/base.css", "/figures.js", "/docs.js"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        outside = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in outside
        assert "https://" not in outside


def test_every_error_is_a_sentence_and_is_counted(client: httpx.Client) -> None:
    for path, status, words in (
        ("/nowhere", 404, "GET /nowhere: Not Found; /openapi.json lists all routes"),
        ("/figures?width=1", 422, "query.width: "),
        ("/predict", 405, "GET /predict: Method Not Allowed"),
    ):
        answer = client.get(path)
        assert answer.status_code == status
        assert answer.json()["error"].startswith(words)
        assert f'resitta_refused_total{{status="{status}"}} 1.0' in client.get("/metrics").text


class TestShortOfTime:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(answer_timeout=0.3)

    def test_what_takes_too_long_is_given_up(self, client: httpx.Client, service: Service) -> None:
        held, plain = threading.Event(), service.readers[0].predict
        service.readers[0].predict = lambda *asked: (held.wait(20), plain(*asked))[1]
        answer = client.post("/predict", content=picture(), headers={"Content-Type": "image/png"})
        service.readers[0].predict = plain
        held.set()
        assert answer.status_code == 503
        assert answer.json()["error"] == "no answer within 0.3 s; try again later"

    def test_a_task_that_waits_too_long_is_not_begun(self, client: httpx.Client, service: Service) -> None:
        held = threading.Event()
        writer_of(service).thread.submit(lambda: held.wait(20))
        answer = client.post("/pause", headers={"Authorization": f"Bearer {TOKEN}"})
        held.set()
        assert answer.status_code == 503
        assert client.get("/stats").json()["learning"]
