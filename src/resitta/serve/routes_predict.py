"""The public routes: predictions, health and statistics."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from torch import Tensor

from resitta.serve import schema
from resitta.serve.decoders import Decoders
from resitta.serve.history import Floats, ShadowHistory, TrafficHistory
from resitta.serve.http_errors import Refused
from resitta.serve.metrics import ServiceMetrics
from resitta.serve.reader import Answer
from resitta.serve.request_body import BodyBudget, read_body
from resitta.serve.security import client_of
from resitta.serve.service import Service
from resitta.serve.settings import Resize
from resitta.serve.stream_names import StreamName
from resitta.training.entropy import entropy

INLINE_INPUTS, INLINE_LOGITS = 2**19, 2**12
"""Image values and logits that are converted in the event loop, in a millisecond or two; more go to a thread."""

T = TypeVar("T")
V = TypeVar("V")


class PredictRoutes:
    """`/predict` and the routes that report on it."""

    def __init__(self, service: Service, resize: Resize) -> None:
        self.service = service
        self.limits = service.limits
        self.budget = BodyBudget(self.limits.max_bodies)
        self.history = TrafficHistory()
        self.shadow_history = ShadowHistory()
        service.adapter.add_callback(self.shadow_history)
        self.metrics = ServiceMetrics(service)
        self.decoders = Decoders(self.limits, self.metrics, service.size, resize)

    def routes(self) -> APIRouter:
        """Return a router with all routes."""
        router = APIRouter()
        answers = {200: {"model": schema.Predictions}, **schema.refusals(400, 403, 408, 413, 415, 429, 500, 503)}
        router.post("/predict", responses=answers, openapi_extra=schema.images(self.limits))(self.predict)
        router.get("/health", response_model=schema.Status)(self.health)
        router.get("/ready", response_model=schema.Status, responses=schema.refusals(503))(self.ready)
        router.get("/stats")(self.stats)
        router.get("/history")(self.recent)
        router.get("/figures", include_in_schema=False)(self.figures)
        router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})(self.scrape)
        return router

    async def predict(self, request: Request, stream: StreamName) -> Response:
        """Predict one or many images: JPEG, PNG, WebP or npy bytes, multipart files, or base64 in JSON."""
        start, client = time.perf_counter(), client_of(request)
        async with asyncio.timeout(self.limits.answer_timeout):
            with self.budget.request(client) as take:  # the body is held until it is decoded
                kind, body = await read_body(request, self.limits, take)
                decoded = await self.decoders.decode(kind, body, client=client, gone=request.is_disconnected)
                del body
            images = await call(to_floats, decoded, inline=decoded.numel() <= INLINE_INPUTS)
            answer = await asyncio.wrap_future(self.service.submit(images, client, stream))
            inline = answer.logits.numel() <= INLINE_LOGITS
            response, scores = await call(self._response, answer, inline=inline)
        self.observe(time.perf_counter() - start, scores)
        if name := self.service.stream_of(client, stream):
            response.headers["X-Stream"] = name
        return response

    def observe(self, seconds: float, scores: "Scores") -> None:
        """Record an answer in the history and the metrics."""
        self.history.add(scores.labels, scores.confidences, scores.entropies, latency=seconds)
        self.metrics.observe(seconds, scores.entropies.tolist())

    async def health(self) -> dict[str, str]:
        """Report that the process runs."""
        return {"status": "alive"}

    async def ready(self) -> dict[str, str]:
        """Report whether predictions are answered."""
        if not self.service.ready:
            raise Refused(503, "the service is starting or stopping; try again later")
        return {"status": "ready"}

    async def stats(self) -> dict[str, Any]:
        """Report the counters, the adapter's state and the latest events."""
        return self.service.stats()

    async def recent(self) -> dict[str, Any]:
        """Report the last minutes second by second, the classes of the last minute, and how the source compares."""
        now = int(self.history.clock())
        shadow = self.shadow_history.points()
        return {"time": now, "points": self.history.points(), "classes": self.history.class_mix(), "shadow": shadow}

    async def figures(self, width: Annotated[int, Query(ge=280, le=920)] = 520) -> dict[str, str]:
        """Draw the last minutes for the live page, as SVG."""
        return self.history.figures(width - width % 80)  # few widths, so that hardly anything is drawn twice

    async def scrape(self) -> Response:
        """Report the metrics in Prometheus' text format."""
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4")

    def _response(self, answer: Answer) -> tuple[Response, "Scores"]:
        """Turn logits into a response."""
        scores, names = Scores.of(answer), self.service.names
        found = scores.confidences, scores.entropies, scores.probabilities
        rounded = (np.round(values, 6).tolist() for values in found)
        predictions = [
            {"label": label, "name": names[label], "confidence": most, "entropy": nats, "probabilities": every}
            for label, most, nats, every in zip(scores.labels.tolist(), *rounded, strict=True)
        ]
        content = {"predictions": predictions, "version": answer.version, "learned": answer.learned}
        if answer.ids:
            content["fallback"] = answer.fallback
            for prediction, name, compared in zip(predictions, answer.ids, answer.compared, strict=True):
                prediction |= {"id": name, "compared": compared}
        return JSONResponse(content), scores


@dataclass(frozen=True)
class Scores:
    """What follows from the logits of a request."""

    probabilities: Floats
    labels: NDArray[np.int64]
    confidences: Floats
    entropies: Floats

    @classmethod
    def of(cls, answer: Answer) -> "Scores":
        """Compute them; a NaN is refused, since JSON has none and it would spoil every mean of the history."""
        logits = answer.logits.double()
        probabilities, entropies = logits.softmax(dim=1).numpy(), entropy(logits).numpy()
        if not np.isfinite(entropies).all():
            raise Refused(500, "the model's answer is not finite; check the image and the model")
        return cls(probabilities, probabilities.argmax(axis=1), probabilities.max(axis=1), entropies)


def to_floats(images: Tensor) -> Tensor:
    """Scale uint8 images to [0, 1]; floats are returned unchanged."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


async def call(function: Callable[[T], V], argument: T, *, inline: bool) -> V:
    """Call a function here if it is quick, else in a thread, so that the event loop is not blocked."""
    return function(argument) if inline else await asyncio.to_thread(function, argument)
