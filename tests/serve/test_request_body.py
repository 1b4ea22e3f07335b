import httpx
import pytest
from tests.serve.helpers import picture, until
from tests.serve.test_hostile import answer_of, talk

from resitta.serve.http_errors import Refused
from resitta.serve.request_body import BodyBudget
from resitta.serve.service import Service
from resitta.serve.settings import Limits


def test_bytes_are_counted_until_their_request_is_over() -> None:
    budget = BodyBudget(most=10)
    with budget.request("a") as first:
        first(6)
        with pytest.raises(Refused, match="hold 10 bytes"), budget.request("b") as second:  # noqa: PT012
            second(4)
            second(1)
        assert budget.held == 6
    assert budget.held == 0


def test_a_request_that_is_alone_always_has_room() -> None:
    with BodyBudget(most=10).request("a") as take:
        take(8)
        take(8)


@pytest.fixture
def limits() -> Limits:
    return Limits(max_bodies=1000, body_timeout=1.0, learn_batch=8)


def test_requests_are_refused_while_others_hold_all_bytes(url: str, client: httpx.Client, service: Service) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 2000\r\n\r\n"
    slow = talk(url, head + bytes(950))
    until(lambda: send(client) == 429)
    assert b" 408 " in answer_of(slow)
    assert send(client) == 200


def send(client: httpx.Client) -> int:
    return client.post("/predict", content=picture(), headers={"Content-Type": "image/png"}).status_code
