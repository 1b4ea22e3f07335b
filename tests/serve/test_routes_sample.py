import base64
import io
from functools import partial

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import serving
from tests.serve.helpers import TOKEN

from resitta.data.datasets import ArrayImages
from resitta.serve.app import create_app
from resitta.serve.routes_sample import EACH, generated
from resitta.serve.service import Service


def pixels(uri: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_the_corruption_changes_and_the_stream_can_be_repeated(client: httpx.Client, service: Service) -> None:
    get = partial(client.get, "/sample")
    first, again = get(params={"count": 3}).json(), get(params={"start": 0, "count": 3}).json()
    last, next_ = get(params={"start": EACH - 1}).json(), get(params={"start": EACH}).json()
    assert first == again
    assert len(first["images"]) == 3
    assert pixels(first["images"][0]).shape == (32, 32, 3)
    assert first["corruption"] == last["corruption"] != next_["corruption"]
    assert service.predicted == 0, "nothing is predicted or learned"


def test_what_it_returns_can_be_predicted(client: httpx.Client, service: Service) -> None:
    images = [uri.partition(",")[2] for uri in client.get("/sample").json()["images"]]
    answer = client.post("/predict?top=2", json={"images": images})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == service.predicted == 8


@pytest.mark.parametrize("query", ["count=0", "count=17", "start=-1", "start=x"])
def test_bounds(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/sample?{query}")
    assert answer.status_code == 422
    assert "error" in answer.json()


def test_images_of_ones_own_are_loaded_once(service: Service) -> None:
    calls = []

    def load() -> ArrayImages:
        calls.append(1)
        return generated()

    with serving(create_app(service, token=TOKEN, samples=load)) as url:
        assert not calls, "not before they are asked for"
        for _ in range(2):
            assert httpx.get(f"{url}/sample?count=1", timeout=30).status_code == 200
    assert len(calls) == 1
