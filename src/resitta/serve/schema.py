"""The forms of requests and answers, for `/openapi.json`."""

from typing import Any

from pydantic import BaseModel

from resitta.serve.bodies import JSON, MULTIPART, RAW, Base64Images


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


class Status(BaseModel):
    """Whether the service is there."""

    status: str


_BINARY = {"type": "string", "format": "binary"}
_FILES = {"type": "object", "properties": {"images": {"type": "array", "items": _BINARY}}, "required": ["images"]}
IMAGES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **{kind: {"schema": _BINARY} for kind in RAW},
            MULTIPART: {"schema": _FILES},
            JSON: {"schema": Base64Images.model_json_schema()},
        },
    }
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals a route may answer with.

    >>> list(refusals(401))
    [401]
    """
    return {status: {"model": Sentence} for status in statuses}
