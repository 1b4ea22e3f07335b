"""The schema of requests and responses, for `/openapi.json`."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from resitta.serve.events import Kind
from resitta.serve.images import JSON, MULTIPART, RAW
from resitta.serve.settings import Limits
from resitta.serve.stream_rows import StreamRow

MOST_LABELS = 10_000
"""Labels of one request."""


class Candidate(BaseModel):
    """One of the most probable classes."""

    label: int = Field(examples=[3])
    name: str = Field(examples=["cat"])
    probability: float = Field(examples=[0.93])


class Prediction(BaseModel):
    """The prediction for one image; the entropy is in nats.

    `probabilities` are those of all classes; with `?top=` there is `top` instead, the most probable classes in order.

    A service with a shadow names each image by an `id`, for `/feedback`, and tells whether the image is `compared` with
    the source: only labels of these can be used.
    """

    label: int = Field(examples=[3])
    name: str = Field(examples=["cat"])
    confidence: float = Field(examples=[0.93])
    entropy: float = Field(examples=[0.31])
    probabilities: list[float] = Field(default=[], examples=[[0.01, 0.02, 0.04, 0.93]])
    top: list[Candidate] = []
    id: str = Field(default="", examples=["5e2a01c7-17"])
    compared: bool = False


class Predictions(BaseModel):
    """One prediction per image, in their order.

    `version` is the state of the model that predicted; `learned` is how many of the images it will learn from;
    `fallback` tells that the source model predicted instead.
    """

    predictions: list[Prediction]
    version: int = Field(examples=[29])
    learned: int = Field(examples=[1])
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

    used: int = Field(examples=[2])
    not_compared: int = Field(examples=[0])
    unknown: int = Field(examples=[0])
    falling_back: bool


class Sample(BaseModel):
    """One image in the memory, as the source of an <img>, with its predicted label and entropy."""

    image: str = Field(examples=["data:image/png;base64,…"])
    label: int = Field(examples=[3])
    age: int = Field(examples=[120])
    entropy: float = Field(examples=[0.31])


class Sentence(BaseModel):
    """Why a request was refused."""

    error: str = Field(examples=["the request holds no image; send at least one"])


class State(BaseModel):
    """The state after an admin request."""

    version: int = Field(examples=[30])
    learning: bool = Field(examples=[True])


class RolledBack(State):
    """The snapshot that was restored, and newer ones that were skipped because they could not be read."""

    snapshot: int = Field(examples=[27])
    skipped: list[int] = Field(examples=[[]])


class Streams(BaseModel):
    """The streams of a fleet by name, those of clients without the token last; `total` may be more than are listed."""

    streams: list[StreamRow]
    total: int


class Status(BaseModel):
    """Whether the service is up."""

    status: str = Field(examples=["ready"])


class Event(BaseModel):
    """An entry of the log; `time` is in seconds since 1970."""

    time: float = Field(examples=[1780000000.5])
    kind: Kind
    text: str = Field(examples=["after 4,096 images another domain has begun"])


class AdapterStats(BaseModel):
    """What was learned: counters, the memory (`bank`), and how far the statistics are from the source's.

    `drift` is the W₂ distance of each layer. `relative_drift` is the mean over the layers in units of the source's
    spread, which the guard bounds by `max_drift`.
    """

    samples: int = Field(examples=[4160])
    updates: int = Field(examples=[65])
    mean_entropy: float = Field(examples=[0.42])
    bank: dict[str, Any] | None = Field(examples=[{"occupancy": 64, "capacity": 64, "per_class": [7, 6]}])
    drift: dict[str, float] = Field(examples=[{"bn1": 0.61, "block1.layer.0.bn1": 0.35}])
    relative_drift: float = Field(examples=[0.08])
    label_prior: dict[str, Any] | None = None


class Stats(BaseModel):
    """The state of the service.

    `model` is as it was given to `resitta serve`. `settings` and `guard` hold what differs from the defaults; `guard`
    is null if there is none. `offered` images are `learned` from, `dropped`, `skipped` or `waiting`. `snapshot_times`
    says when each of the `snapshots` was written, in seconds since 1970. `events` are the latest, the newest first.
    """

    method: str = Field(examples=["resitta"])
    model: str = Field(examples=["wrn28x10"])
    settings: dict[str, Any] = Field(examples=[{"anchor": 0.1}])
    guard: dict[str, Any] | None = Field(examples=[{}])
    device: str = Field(examples=["cpu"])
    precision: str = Field(examples=["float32"])
    size: int = Field(examples=[32])
    names: list[str] = Field(examples=[["ape", "bee", "cat"]])
    version: int = Field(examples=[65])
    learning: bool = Field(examples=[True])
    predictions_wait_for_updates: bool
    predicted: int = Field(examples=[4161])
    offered: int = Field(examples=[4161])
    learned: int = Field(examples=[4160])
    dropped: int
    skipped: int
    screened: int
    waiting: int = Field(examples=[1])
    waiting_for_prediction: int
    adapter: AdapterStats
    shadow: dict[str, Any] | None
    snapshots: list[int] = Field(examples=[[41, 65]])
    snapshot_times: dict[str, float] = Field(examples=[{"41": 1780000000.1, "65": 1780000060.2}])
    failed_saves: int
    guard_fired: dict[str, int] = Field(examples=[{"unknown": 3, "drift": 0}])
    clients: list[dict[str, Any]] = Field(examples=[[]])
    events: list[Event]
    readers: list[int] = Field(default=[], examples=[[]])


class Traffic(BaseModel):
    """The answers of one step: means, and quantiles of the latency."""

    time: int = Field(examples=[1780000000])
    requests: int = Field(examples=[12])
    images: int = Field(examples=[96])
    entropy: float = Field(examples=[0.42])
    confidence: float = Field(examples=[0.86])
    p50_ms: float = Field(examples=[4.1])
    p99_ms: float = Field(examples=[18.2])


class Adaptation(BaseModel):
    """The updates of one step and the largest relative drift; null if the method keeps no statistics."""

    time: int = Field(examples=[1780000000])
    updates: int = Field(examples=[2])
    drift: float | None = Field(examples=[0.08])


class History(BaseModel):
    """The course of the service: steps of `step` seconds, at most `seconds` of them.

    `points` are the steps in which requests were answered, `adaptation` those in which the service ran, both the oldest
    first. `classes` counts the predicted classes of the last minute; `shadow` is how the source compared.
    """

    time: int = Field(examples=[1780000001])
    step: int = Field(examples=[1])
    seconds: int = Field(examples=[300])
    points: list[Traffic]
    adaptation: list[Adaptation]
    classes: dict[str, int] = Field(examples=[{"0": 310, "3": 96}])
    shadow: list[dict[str, Any]] = Field(examples=[[]])


class Samples(BaseModel):
    """Images as the sources of <img>: PNG in base64 behind `data:image/png;base64,`; and how they were corrupted."""

    images: list[str] = Field(examples=[["data:image/png;base64,…"]])
    corruption: str = Field(examples=["fog"])
    severity: int = Field(examples=[5])


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
