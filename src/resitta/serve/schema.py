"""The schema of requests and responses, for `/openapi.json`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from resitta.serve.images import JSON, MULTIPART, RAW
from resitta.serve.settings import Limits

Base64 = Annotated[str, Field(min_length=1, json_schema_extra={"format": "byte", "contentEncoding": "base64"})]


class Base64Images(BaseModel):
    """Images as text: the bytes of JPEG, PNG, WebP or npy files in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)

    images: Annotated[list[Base64], Field(min_length=1)]


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
    """Describe the error responses of a route.

    >>> list(refusals(401))
    [401]
    """
    return {status: {"model": Sentence} for status in statuses}
