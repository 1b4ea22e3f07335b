"""The Open Inference Protocol, in JSON, in binary form, and through the client of Triton."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tests.serve.conftest import serving
from tests.serve.helpers import SIZE, TOKEN, images, picture, until, writer_of

import resitta
from resitta.serve.app import create_app
from resitta.serve.service import Service

INFER = "/v2/models/resitta/infer"
LENGTH = "Inference-Header-Content-Length"


def tensor(array: Any, **more: Any) -> dict[str, Any]:
    found = {"name": "images", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
    return {"inputs": [found], **more}


def binary(array: Any, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    """The arguments of a request whose tensor follows the JSON."""
    raw = array.tobytes()
    described = {"name": "images", "datatype": datatype, "shape": list(array.shape)}
    text = json.dumps({"inputs": [described | {"parameters": {"binary_data_size": len(raw)}}], **more}).encode()
    return {"content": text + raw, "headers": {LENGTH: str(len(text))}}


def by_name(answer: httpx.Response) -> dict[str, Any]:
    """The tensors of an answer."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get(LENGTH, len(answer.content)))
    head, rest = json.loads(answer.content[:length]), answer.content[length:]
    found: dict[str, Any] = {}
    for output in head["outputs"]:
        dtype = {"FP32": "<f4", "INT64": "<i8"}[output["datatype"]]
        if "data" in output:
            values = np.array(output["data"], dtype)
        else:
            size = output["parameters"]["binary_data_size"]
            values, rest = np.frombuffer(rest[:size], dtype), rest[size:]
        found[output["name"]] = values.reshape(output["shape"])
    assert not rest
    return found


def test_json_and_bytes_get_the_answer_of_the_model(client: httpx.Client, service: Service) -> None:
    batch = images(3)
    with torch.no_grad():
        logits = service.adapter.source(batch)
    p = logits.double().softmax(dim=1)
    expected = {
        "probabilities": p,
        "labels": p.argmax(dim=1),
        "entropies": -(p * p.log()).sum(dim=1),
        "logits": logits,
    }
    array = batch.numpy()
    for answer in (
        client.post(INFER, json=tensor(array, id="7")),
        client.post(INFER, **binary(array, id="7")),
        client.post(INFER, **binary(array, id="7", parameters={"binary_data_output": True})),
    ):
        found = by_name(answer)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert np.allclose(found[name], values, atol=1e-5)
        head = json.loads(answer.content[: int(answer.headers.get(LENGTH, len(answer.content)))])
        assert (head["id"], head["model_name"], head["model_version"]) == ("7", "resitta", "0")
        assert head["parameters"] == {"learned": 3}
    until(lambda: service.writer.report().counters.learned == 9)


def test_outputs_are_those_asked_for(client: httpx.Client) -> None:
    asked = [{"name": "labels", "parameters": {"binary_data": True}}, {"name": "entropies"}]
    answer = client.post(INFER, json=tensor(images(2).numpy(), outputs=asked))
    assert list(by_name(answer)) == ["labels", "entropies"]
    assert answer.headers["content-type"] == "application/octet-stream"


def test_pictures_are_resized_as_for_predict(client: httpx.Client) -> None:
    raw = picture("JPEG", width=64, height=48)
    told = client.post("/predict", content=raw, headers={"Content-Type": "image/jpeg"}).json()["predictions"][0]
    parts = np.frombuffer(len(raw).to_bytes(4, "little") + raw, np.uint8)
    request = binary(parts, "BYTES")
    request["content"] = request["content"].replace(b'"shape": [%d]' % len(parts), b'"shape": [1]')
    request["headers"][LENGTH] = str(len(request["content"]) - len(parts))
    assert by_name(client.post(INFER, **request))["probabilities"][0] == pytest.approx(told["probabilities"], abs=1e-5)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 30, 20, 3), dtype=np.uint8)
    assert by_name(client.post(INFER, **binary(pixels, "UINT8")))["labels"].shape == (2,)


def test_the_server_and_the_model_describe_themselves(client: httpx.Client) -> None:
    assert client.get("/v2").json() == {
        "name": "resitta",
        "version": resitta.__version__,
        "extensions": ["binary_tensor_data"],
    }
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/resitta/ready").json() == {"name": "resitta", "ready": True}
    found = client.get("/v2/models/resitta").json()
    assert found["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]}]
    outputs = {output["name"]: (output["datatype"], output["shape"]) for output in found["outputs"]}
    assert outputs["logits"] == outputs["probabilities"] == ("FP32", [-1, 5])
    assert (outputs["labels"], outputs["entropies"]) == (("INT64", [-1]), ("FP32", [-1]))


def test_refusals_are_those_of_predict(client: httpx.Client, service: Service) -> None:
    good = images(2).numpy()
    service.readers[0].waiting = service.limits.queue
    full = client.post(INFER, json=tensor(good))
    service.readers[0].waiting = 0
    refused = {
        404: client.post("/v2/models/other/infer", json=tensor(good)),
        400: client.post(INFER, json=tensor(good * 2)),
        413: client.post(INFER, content=bytes(service.limits.max_body + 1)),
        415: client.post(INFER, json=tensor(good), headers={"Content-Encoding": "gzip"}),
        429: full,
        403: client.post(INFER, json=tensor(good), headers={"Sec-Fetch-Site": "cross-site"}),
        421: client.post(INFER, json=tensor(good), headers={"Host": "elsewhere.example"}),
    }
    for status, answer in refused.items():
        assert answer.status_code == status
        assert list(answer.json()) == ["error"]
    assert "lie in [0, 1]" in refused[400].json()["error"]
    assert full.headers["retry-after"] == "1"
    assert client.get("/v2/models/other").status_code == client.get("/v2/models/other/ready").status_code == 404
    many = client.post(INFER, json=tensor(images(service.limits.max_images + 1).numpy()))
    assert (many.status_code, "1 to 8 images" in many.json()["error"]) == (400, True)
    assert service.predicted == 0


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30, "²"])
def test_a_wrong_length_of_the_json_is_refused(client: httpx.Client, length: str) -> None:
    answer = client.post(INFER, content=b"{}", headers=[(LENGTH.encode(), length.encode())])
    assert answer.status_code == 400
    assert LENGTH in answer.json()["error"]


def test_readiness_follows_the_service(client: httpx.Client, service: Service) -> None:
    service.readers[0].close()
    for path in ("/v2/health/ready", "/v2/models/resitta/ready"):
        assert client.get(path).status_code == 503
    assert client.get("/v2/health/live").status_code == 200


def test_paused_means_predicted_and_not_learned(client: httpx.Client, service: Service) -> None:
    writer_of(service).ask("pause").result()
    assert client.post(INFER, json=tensor(images(2).numpy())).json()["parameters"] == {"learned": 0}


class TestTheClientOfTriton:
    @pytest.fixture
    def triton(self, service: Service) -> Iterator[Any]:
        http: Any = pytest.importorskip("tritonclient.http")
        with serving(create_app(service, token=TOKEN, model_name="street")) as url:
            client = http.InferenceServerClient(url.removeprefix("http://"))
            yield http, client
            client.close()

    @pytest.mark.parametrize("in_binary", [True, False])
    def test_it_infers(self, triton: Any, service: Service, in_binary: bool) -> None:
        http, client = triton
        batch = images(2)
        given = http.InferInput("images", list(batch.shape), "FP32")
        given.set_data_from_numpy(batch.numpy(), binary_data=in_binary)
        asked = [http.InferRequestedOutput(name, binary_data=in_binary) for name in ("logits", "labels")]
        with torch.no_grad():
            expected = service.adapter.source(batch).numpy()
        for outputs in (None, asked):
            found = client.infer("street", [given], outputs=outputs, request_id="7")
            assert np.allclose(found.as_numpy("logits"), expected, atol=1e-5)
            assert found.as_numpy("labels").tolist() == expected.argmax(axis=1).tolist()
            assert found.get_response()["id"] == "7"
        assert service.predicted == 4

    def test_it_sends_files(self, triton: Any) -> None:
        http, client = triton
        given = http.InferInput("images", [2], "BYTES")
        given.set_data_from_numpy(np.array([picture(), picture("JPEG", width=40)], dtype=np.object_))
        assert client.infer("street", [given]).as_numpy("probabilities").shape == (2, 5)

    def test_it_asks_about_server_and_model(self, triton: Any) -> None:
        _, client = triton
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("street")
        assert not client.is_model_ready("resitta")
        assert client.get_server_metadata()["name"] == "resitta"
        assert client.get_model_metadata("street")["inputs"][0]["name"] == "images"

    def test_it_raises_our_sentence(self, triton: Any) -> None:
        http, client = triton
        given = http.InferInput("images", [1, 3, SIZE, SIZE], "FP32")
        given.set_data_from_numpy(np.full((1, 3, SIZE, SIZE), 2, np.float32))
        with pytest.raises(Exception, match=r"\[400\] float images must be finite and lie in \[0, 1\]"):
            client.infer("street", [given])
