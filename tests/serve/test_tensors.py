"""Bodies of the Open Inference Protocol are read without trusting what they declare."""

import base64
import io
import json
from typing import Any

import numpy as np
import pytest

from resitta.serve.http_errors import Refused
from resitta.serve.tensors import INPUT, OUTPUTS, read_request, write_answer

IMAGE = np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 3, 2, 2)


def tensor(array: Any, **changes: Any) -> dict[str, Any]:
    return {"name": INPUT, "datatype": "FP32", "shape": list(array.shape), "data": array.tolist()} | changes


def read(document: Any, binary: bytes = b"", most: int = 4) -> tuple[list[bytes], dict[str, Any]]:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_request(len(text), text + binary, most)


def asked(one: Any, binary: bytes = b"", **more: Any) -> tuple[list[bytes], dict[str, Any]]:
    return read({"inputs": [one], **more}, binary)


def without_data(**changes: Any) -> dict[str, Any]:
    found = tensor(IMAGE, parameters={"binary_data_size": IMAGE.nbytes}) | changes
    del found["data"]
    return found


@pytest.mark.parametrize("data", [IMAGE.tolist(), IMAGE.ravel().tolist()])
def test_numbers_in_json_may_be_nested_or_flat(data: list[Any]) -> None:
    files, wanted = asked(tensor(IMAGE, data=data))
    assert np.array_equal(np.load(io.BytesIO(files[0])), IMAGE)
    assert wanted == {"id": None, "outputs": dict.fromkeys(OUTPUTS, False)}


@pytest.mark.parametrize(
    ("kind", "dtype"), [("FP16", np.float16), ("FP32", np.float32), ("FP64", np.float64), ("UINT8", np.uint8)]
)
def test_bytes_follow_the_json(kind: str, dtype: Any) -> None:
    array = (IMAGE * 9).astype(dtype)
    one = without_data(datatype=kind, parameters={"binary_data_size": array.nbytes})
    files, _ = asked(one, array.tobytes())
    found = np.load(io.BytesIO(files[0]))
    assert found.dtype == dtype
    assert np.array_equal(found, array)


def test_files_are_sent_as_bytes_or_in_base64() -> None:
    files = [b"one file", b"another"]
    texts = [base64.b64encode(file).decode() for file in files]
    assert asked({"name": INPUT, "datatype": "BYTES", "shape": [2], "data": texts})[0] == files
    binary = b"".join(len(file).to_bytes(4, "little") + file for file in files)
    one = without_data(datatype="BYTES", shape=[2], parameters={"binary_data_size": len(binary)})
    assert asked(one, binary)[0] == files


def test_outputs_are_chosen_and_each_says_in_which_form() -> None:
    outputs = [{"name": "labels"}, {"name": "logits", "parameters": {"binary_data": False}}]
    _, wanted = asked(tensor(IMAGE), id="7", outputs=outputs, parameters={"binary_data_output": True})
    assert wanted == {"id": "7", "outputs": {"labels": True, "logits": False}}


def test_an_answer_can_be_read_back() -> None:
    tensors = {"labels": np.array([2, 0]), "logits": np.array([[0.5, 1], [2, 3]]), "entropies": np.array([0.1, 0.2])}
    wanted = {"id": "7", "outputs": {"logits": True, "labels": False, "entropies": True}}
    body, length = write_answer(tensors, wanted, model_name="m")
    head = json.loads(body[:length])
    assert (head["model_name"], head["id"]) == ("m", "7")
    logits, labels, entropies = head["outputs"]
    assert (logits["datatype"], logits["shape"], labels["data"]) == ("FP32", [2, 2], [2, 0])
    size = logits["parameters"]["binary_data_size"]
    rest = body[length:]
    assert np.frombuffer(rest[:size], "<f4").tolist() == [0.5, 1, 2, 3]
    assert np.frombuffer(rest[size:], "<f4") == pytest.approx([0.1, 0.2])
    assert entropies["parameters"]["binary_data_size"] == len(rest) - size
    assert write_answer(tensors, {"id": None, "outputs": {"labels": False}})[1] is None


REFUSED: dict[str, tuple[Any, bytes, str]] = {
    "no JSON": (b"{", b"", "not JSON"),
    "no text": (b"\xff", b"", "not JSON"),
    "deep": (b"[" * 100_000, b"", "not JSON"),
    "a list": ([], b"", "the request must be a JSON object"),
    "no input": ({}, b"", "one input, named 'images'"),
    "two inputs": ({"inputs": [tensor(IMAGE)] * 2}, b"", "one input"),
    "another input": ({"inputs": [tensor(IMAGE, name="x")]}, b"", "one input"),
    "parameters": ({"inputs": [tensor(IMAGE, parameters=3)]}, b"", "an input must be a JSON object"),
    "an id": ({"inputs": [tensor(IMAGE)], "id": 7}, b"", "the id"),
    "outputs": ({"inputs": [tensor(IMAGE)], "outputs": {"name": "labels"}}, b"", "outputs are a list"),
    "an output": ({"inputs": [tensor(IMAGE)], "outputs": [{"name": "x"}]}, b"", "outputs are probabilities, labels"),
    "a list as name": ({"inputs": [tensor(IMAGE)], "outputs": [{"name": ["x"]}]}, b"", "outputs are"),
    "classification": (
        {"inputs": [tensor(IMAGE)], "outputs": [{"name": "logits", "parameters": {"classification": 2}}]},
        b"",
        "without classification",
    ),
    "a shape": ({"inputs": [tensor(IMAGE, shape=[1, -3, 2, 2])]}, b"", "positive numbers"),
    "true in a shape": ({"inputs": [tensor(IMAGE, shape=[True, 3, 2, 2])]}, b"", "positive numbers"),
    "no shape": ({"inputs": [tensor(IMAGE, shape=None)]}, b"", "positive numbers"),
    "a datatype": ({"inputs": [tensor(IMAGE, datatype="INT8")]}, b"", "one of UINT8, FP16, FP32, FP64, BYTES"),
    "a list as datatype": ({"inputs": [tensor(IMAGE, datatype=["FP32"])]}, b"", "one of UINT8"),
    "too few numbers": ({"inputs": [tensor(IMAGE, data=[1, 2])]}, b"", "has 2 numbers"),
    "ragged": ({"inputs": [tensor(IMAGE, data=[[1], [1, 2]])]}, b"", "lists of equal lengths"),
    "texts": ({"inputs": [tensor(IMAGE, data=["a"] * 12)]}, b"", "must be numbers"),
    "nothing": ({"inputs": [tensor(IMAGE, data=None)]}, b"", "must be numbers"),
    "huge numbers": ({"inputs": [tensor(IMAGE, data=[10**400] * 12)]}, b"", "must be numbers"),
    "fractions as bytes": ({"inputs": [tensor(IMAGE, datatype="UINT8")]}, b"", "whole numbers from 0 to 255"),
    "256 as a byte": ({"inputs": [tensor(IMAGE, datatype="UINT8", data=[256] * 12)]}, b"", "from 0 to 255"),
    "no numbers at all": ({"inputs": [tensor(IMAGE, datatype="UINT8", data=[])]}, b"", "from 0 to 255"),
    "both forms": (
        {"inputs": [tensor(IMAGE, parameters={"binary_data_size": 48})]},
        IMAGE.tobytes(),
        "either data in the JSON or",
    ),
    "neither form": ({"inputs": [without_data(parameters={})]}, b"", "either data in the JSON or"),
    "bytes too many": ({"inputs": [without_data()]}, IMAGE.tobytes() + b"x", "49 bytes follow"),
    "bytes not declared": ({"inputs": [tensor(IMAGE)]}, b"x", "1 bytes follow"),
    "a text as size": ({"inputs": [without_data(parameters={"binary_data_size": "48"})]}, IMAGE.tobytes(), "either"),
    "another shape": ({"inputs": [without_data(shape=[2, 3, 2, 2])]}, IMAGE.tobytes(), "is not 48 bytes long"),
    "beyond any memory": ({"inputs": [without_data(shape=[2**30] * 4)]}, IMAGE.tobytes(), "is not 48 bytes long"),
    "no base64": ({"inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [1], "data": ["%"]}]}, b"", "in base64"),
    "a number as file": ({"inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [1], "data": [3]}]}, b"", "base64"),
    "too many files": (
        {"inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [5], "data": ["aa=="] * 5}]},
        b"",
        "4",
    ),
    "files of another shape": (
        {"inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [2], "data": ["aa=="]}]},
        b"",
        "has 1 files and the shape [2]",
    ),
    "half a file": (
        {"inputs": [without_data(datatype="BYTES", shape=[1], parameters={"binary_data_size": 6})]},
        b"\x09\0\0\0xx",
        "ends within a file",
    ),
    "an empty file": (
        {"inputs": [without_data(datatype="BYTES", shape=[1], parameters={"binary_data_size": 4})]},
        b"\0\0\0\0",
        "an empty one",
    ),
}


@pytest.mark.parametrize(("document", "binary", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_a_sentence(document: Any, binary: bytes, words: str) -> None:
    with pytest.raises(Refused) as refused:
        read(document, binary)
    assert words in str(refused.value)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 300
