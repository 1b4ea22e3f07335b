"""The forms of requests and answers, for `/openapi.json`."""

from typing import Any

from pydantic import BaseModel

from resitta.serve.forms import JSON, MULTIPART, RAW
from resitta.serve.request_body import Base64Images
from resitta.serve.settings import Limits


class Prediction(BaseModel):
    """What the model says of one image; the entropy is in nats."""

    label: int
    name: str
    confidence: float
    entropy: float
    probabilities: list[float]


class Predictions(BaseModel):
    """The answer to a request: one prediction per image, in their order.

    `version` tells which state of the model predicted; `learned` how many of the images it will learn from.
    """

    predictions: list[Prediction]
    version: int
    learned: int


class Sample(BaseModel):
    """One image in the memory, as the source of an <img>, with the label and entropy it had when it came."""

    image: str
    label: int
    age: int
    entropy: float


class Sentence(BaseModel):
    """Why a request was refused."""

    error: str


class State(BaseModel):
    """What a control has led to."""

    version: int
    learning: bool


class RolledBack(State):
    """The snapshot that the new version was made from, and newer ones that could not be read and were skipped."""

    snapshot: int
    skipped: list[int]


class Status(BaseModel):
    """Whether the service is there."""

    status: str


def images(limits: Limits) -> dict[str, Any]:
    """The body of a request for predictions, as far as OpenAPI can say it: which bytes are a picture, it cannot.

    >>> list(images(Limits())["requestBody"]["content"])[-2:]
    ['multipart/form-data', 'application/json']
    """
    files = {"type": "array", "items": _file(), "minItems": 1, "maxItems": limits.max_images}
    form = {"type": "object", "properties": {"images": files}, "required": ["images"], "additionalProperties": False}
    texts = Base64Images.model_json_schema()
    texts["properties"]["images"]["maxItems"] = limits.max_images
    content = {
        **{kind: {"schema": _file(kind)} for kind in RAW},
        MULTIPART: {"schema": form},
        JSON: {"schema": texts},
    }
    return {"requestBody": {"required": True, "content": content}}


def _file(kind: str = "application/octet-stream") -> dict[str, Any]:
    return {"type": "string", "format": "binary", "contentMediaType": kind, "minLength": 1}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals a route may answer with.

    >>> list(refusals(401))
    [401]
    """
    return {status: {"model": Sentence} for status in statuses}
