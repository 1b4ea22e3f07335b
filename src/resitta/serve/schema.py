"""The schema of requests and responses, for `/openapi.json`."""

from typing import Any

from pydantic import BaseModel

from resitta.serve.images import JSON, MULTIPART, RAW
from resitta.serve.settings import Limits


class Prediction(BaseModel):
    """The prediction for one image; the entropy is in nats."""

    label: int
    name: str
    confidence: float
    entropy: float
    probabilities: list[float]


class Predictions(BaseModel):
    """One prediction per image, in their order.

    `version` is the state of the model that predicted; `learned` is how many of the images it will learn from.
    """

    predictions: list[Prediction]
    version: int
    learned: int


class Sample(BaseModel):
    """One image in the memory, as the source of an <img>, with its predicted label and entropy."""

    image: str
    label: int
    age: int
    entropy: float


class Sentence(BaseModel):
    """Why a request was refused."""

    error: str


class State(BaseModel):
    """The state after an admin request."""

    version: int
    learning: bool


class RolledBack(State):
    """The snapshot that was restored, and newer ones that were skipped because they could not be read."""

    snapshot: int
    skipped: list[int]


class Status(BaseModel):
    """Whether the service is up."""

    status: str


def images(limits: Limits) -> dict[str, Any]:
    """Describe the body of `/predict`. OpenAPI cannot say which bytes are an image.

    >>> list(images(Limits())["requestBody"]["content"])[-2:]
    ['multipart/form-data', 'application/json']
    """
    raw = {"type": "string", "format": "binary", "contentMediaType": "application/octet-stream", "minLength": 1}
    base64 = {"type": "string", "format": "byte", "contentEncoding": "base64", "minLength": 1}
    base64["description"] = "The bytes of a JPEG, PNG, WebP or npy file in base64."

    def several(item: dict[str, Any]) -> dict[str, Any]:
        listed = {"type": "array", "items": item, "minItems": 1, "maxItems": limits.max_images}
        named = {"properties": {"images": listed}, "required": ["images"], "additionalProperties": False}
        return {"schema": {"type": "object", **named}}

    single = {kind: {"schema": raw | {"contentMediaType": kind}} for kind in RAW}
    content = {**single, MULTIPART: several(raw), JSON: several(base64)}
    return {"requestBody": {"required": True, "content": content}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route."""
    return {status: {"model": Sentence} for status in statuses}
