"""The schema of requests and responses, for `/openapi.json`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from resitta.serve.images import JSON, MULTIPART, RAW
from resitta.serve.settings import Limits
from resitta.serve.stream_rows import StreamRow

MOST_LABELS = 10_000
"""Labels of one request."""


class Prediction(BaseModel):
    """The prediction for one image; the entropy is in nats.

    A service with a shadow names each image by an `id`, for `/feedback`, and tells whether the image is `compared` with
    the source: only labels of these can be used.
    """

    label: int
    name: str
    confidence: float
    entropy: float
    probabilities: list[float]
    id: str = ""
    compared: bool = False


class Predictions(BaseModel):
    """One prediction per image, in their order.

    `version` is the state of the model that predicted; `learned` is how many of the images it will learn from;
    `fallback` tells that the source model predicted instead.
    """

    predictions: list[Prediction]
    version: int
    learned: int
    fallback: bool = False


class Labels(BaseModel):
    """The ids of images, as `/predict` answered them, and the class of each: its number or its name."""

    model_config = ConfigDict(extra="forbid")
    ids: list[str] = Field(min_length=1, max_length=MOST_LABELS)
    labels: list[StrictInt | str] = Field(min_length=1, max_length=MOST_LABELS)


class LabelCount(BaseModel):
    """How many labels were used, of images that were not compared, and of ids that are not known.

    `falling_back` tells whether the source model answers from now on.
    """

    used: int
    not_compared: int
    unknown: int
    falling_back: bool


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


class Streams(BaseModel):
    """The streams of a fleet by name, those of clients without the token last; `total` may be more than are listed."""

    streams: list[StreamRow]
    total: int


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


def labels() -> dict[str, Any]:
    """Describe the body of `/feedback`.

    >>> labels()["requestBody"]["content"]["application/json"]["schema"]["required"]
    ['ids', 'labels']
    """
    return {"requestBody": {"required": True, "content": {JSON: {"schema": Labels.model_json_schema()}}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route."""
    return {status: {"model": Sentence} for status in statuses}
