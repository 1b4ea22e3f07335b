"""Requests and answers of the Open Inference Protocol (KServe v2): tensors in JSON, or as bytes that follow the JSON.

Worker processes import this, so it uses NumPy alone.
"""

import base64
import binascii
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resitta.serve.http_errors import Refused

TENSORS = "application/x-open-inference"
"""The content type by which workers know such a body; its parameter `json` is the length of the JSON."""
INPUT = "images"
DTYPES = {"UINT8": "|u1", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
FILES = "BYTES"
"""The datatype of JPEG, PNG, WebP and npy files; those in JSON are base64."""
OUTPUTS = {"probabilities": "FP32", "labels": "INT64", "entropies": "FP32", "logits": "FP32"}
NUMBERS = {"FP32": "<f4", "INT64": "<i8"}
LENGTH = 4
"""Bytes before each file of a binary tensor, which hold its length."""

Array = NDArray[Any]
Wanted = dict[str, Any]
"""The `id` of a request, and `outputs`: the names of the tensors to answer, each with whether it is binary."""


def read_request(length: int, body: bytes, most: int) -> tuple[list[bytes], Wanted]:
    """Return the images of a request as files, at most `most`, and what is wanted.

    >>> tensor = {"name": "images", "datatype": "FP32", "shape": [1, 3, 1, 1], "data": [0, 0.5, 1]}
    >>> body = json.dumps({"id": "7", "inputs": [tensor], "outputs": [{"name": "labels"}]}).encode()
    >>> files, wanted = read_request(len(body), body, most=8)
    >>> np.load(io.BytesIO(files[0])).ravel().tolist(), wanted
    ([0.0, 0.5, 1.0], {'id': '7', 'outputs': {'labels': False}})
    """
    try:
        document = _table(json.loads(body[:length]), "the request")
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the request is not JSON ({str(error)[:100]})") from None
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or _table(inputs[0], "an input").get("name") != INPUT:
        raise Refused(400, f"a request has one input, named {INPUT!r}; see the metadata of the model")
    return _files(inputs[0], body[length:], most), _wanted(document)


def write_answer(tensors: Mapping[str, Array], wanted: Wanted, **head: Any) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON if binary tensors follow.

    >>> write_answer({"labels": np.array([3])}, {"id": None, "outputs": {"labels": True}}, model_name="m")[1]
    126
    """
    outputs, binary = [], b""
    for name, as_bytes in wanted["outputs"].items():
        array = tensors[name].astype(NUMBERS[OUTPUTS[name]])
        output: dict[str, Any] = {"name": name, "datatype": OUTPUTS[name], "shape": list(array.shape)}
        if as_bytes:
            output["parameters"] = {"binary_data_size": array.nbytes}
            binary += array.tobytes()
        else:
            output["data"] = array.ravel().tolist()
        outputs.append(output)
    named = {} if wanted["id"] is None else {"id": wanted["id"]}
    text = json.dumps({**head, **named, "outputs": outputs}).encode()
    return text + binary, len(text) if any(wanted["outputs"].values()) else None


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("parameters", {}), dict):
        raise Refused(400, f"{what} must be a JSON object, and so must its parameters")
    return value


def _wanted(document: dict[str, Any]) -> Wanted:
    name, listed = document.get("id"), document.get("outputs") or [{"name": name} for name in OUTPUTS]
    if not isinstance(name, str | None) or not isinstance(listed, list):
        raise Refused(400, "the id of a request is a string, and its outputs are a list")
    usual = document.get("parameters", {}).get("binary_data_output", False)
    outputs = {}
    for output in listed:
        asked, parameters = _table(output, "an output").get("name"), output.get("parameters", {})
        if asked not in list(OUTPUTS) or parameters.get("classification"):
            known = ", ".join(OUTPUTS)
            raise Refused(400, f"outputs are {known}, without classification, found {str(output)[:100]}")
        outputs[asked] = parameters.get("binary_data", usual) is True
    return {"id": name, "outputs": outputs}


def _files(tensor: dict[str, Any], binary: bytes, most: int) -> list[bytes]:
    """Return the files that a tensor holds, or one npy file with its numbers."""
    shape, kind, size = (
        tensor.get("shape"),
        tensor.get("datatype"),
        tensor.get("parameters", {}).get("binary_data_size"),
    )
    if not isinstance(shape, list) or not all(type(side) is int and 0 < side < 2**31 for side in shape):
        raise Refused(400, f"the shape of {INPUT} must list positive numbers, found {str(shape)[:60]}")
    if (size is None) == ("data" not in tensor) or (size or 0) != len(binary):
        found = f"{INPUT} has a binary_data_size of {str(size)[:20]}, and {len(binary)} bytes follow the JSON"
        raise Refused(400, f"{found}; send either data in the JSON or as many bytes as declared")
    if kind == FILES:
        files = _texts(tensor["data"]) if size is None else _parts(binary)
        if shape != [len(files)] or len(files) > most:
            raise Refused(400, f"{INPUT} has {len(files)} files and the shape {shape}; send [N], and at most {most}")
        return files
    if not isinstance(kind, str) or kind not in DTYPES:
        raise Refused(400, f"the datatype of {INPUT} is one of {', '.join((*DTYPES, FILES))}, found {str(kind)[:20]}")
    dtype = np.dtype(DTYPES[kind])
    if size is not None and math.prod(shape) * dtype.itemsize != size:
        raise Refused(400, f"{INPUT} of shape {shape} in {kind} is not {size} bytes long")
    array = _numbers(tensor["data"], dtype) if size is None else np.frombuffer(binary, dtype)
    if array.size != math.prod(shape):
        raise Refused(400, f"{INPUT} has {array.size} numbers, which is not the shape {shape}")
    file = io.BytesIO()
    np.save(file, array.reshape(shape))
    return [file.getvalue()]


def _numbers(data: Any, dtype: "np.dtype[Any]") -> Array:
    """Return the numbers of nested or flat lists."""
    try:
        found = np.array(data)
    except (ValueError, RecursionError):
        found = np.array(None)  # lists of different lengths
    whole = dtype.kind == "u"
    if found.dtype.kind not in ("iu" if whole else "iuf") or (whole and not (found.min() >= 0 and found.max() <= 255)):
        wanted = "whole numbers from 0 to 255" if whole else "numbers"
        raise Refused(400, f"the data of {INPUT} must be {wanted} in lists of equal lengths")
    return found.ravel().astype(dtype)


def _texts(data: Any) -> list[bytes]:
    try:
        return [base64.b64decode(text, validate=True) for text in data]
    except (TypeError, ValueError, binascii.Error):
        raise Refused(400, f"the data of {INPUT} must be a list of files in base64") from None


def _parts(binary: bytes) -> list[bytes]:
    """Split bytes into files, each after its length."""
    files, place = [], 0
    while place < len(binary):
        end = place + LENGTH + int.from_bytes(binary[place : place + LENGTH], "little")
        if end > len(binary) or end == place + LENGTH:
            raise Refused(400, f"{INPUT} ends within a file, or holds an empty one")
        files.append(binary[place + LENGTH : end])
        place = end
    return files
