"""The routes that anyone who reaches the port may use: predictions, and numbers about them."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from torch import Tensor

from resitta.serve import schema
from resitta.serve.body_budget import Traffic
from resitta.serve.clients import client_of
from resitta.serve.decoders import Decoders
from resitta.serve.history import Floats, History
from resitta.serve.http_errors import Refused
from resitta.serve.inline import in_time
from resitta.serve.metrics import Metrics
from resitta.serve.reader import Answer
from resitta.serve.request_body import body_of
from resitta.serve.service import Service
from resitta.serve.settings import Resize
from resitta.training.entropy import entropy

QUICK_IMAGES, QUICK_REPLY = 2**19, 2**12
"""Numbers of images and of logits that the event loop itself converts, in a millisecond or two; a thread does more."""

T = TypeVar("T")
V = TypeVar("V")


class Reply(NamedTuple):
    """The answer to a request, and what is noted of it."""

    response: Response
    labels: NDArray[np.int64]
    confidences: Floats
    entropies: Floats


class Predicting:
    """`/predict` and the routes that tell how it goes."""

    def __init__(self, engine: Service, resize: Resize) -> None:
        self.engine = engine
        self.limits = engine.limits
        self.traffic = Traffic(self.limits.max_bodies)
        self.history = History()
        self.metrics = Metrics(engine)
        self.decoders = Decoders(self.limits, self.metrics, engine.size, resize)

    def routes(self) -> APIRouter:
        """Give every method its path."""
        router = APIRouter()
        answers = {200: {"model": schema.Predictions}, **schema.refusals(400, 403, 408, 413, 415, 429, 500, 503)}
        router.post("/predict", responses=answers, openapi_extra=schema.images(self.limits))(self.predict)
        router.get("/health", response_model=schema.Status)(self.health)
        router.get("/ready", response_model=schema.Status, responses=schema.refusals(503))(self.ready)
        router.get("/stats")(self.stats)
        router.get("/history")(self.recent)
        router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})(self.scrape)
        return router

    async def predict(self, request: Request) -> Response:
        """Predict one or many images: JPEG, PNG, WebP or npy bytes, multipart files, or base64 in JSON."""
        start = time.perf_counter()
        async with in_time(self.limits.answer_timeout):
            images = await self._images(request)
            answer = await asyncio.wrap_future(self.engine.submit(images, client_of(request)))
            reply = await _call(self._reply, answer, quick=answer.logits.numel() <= QUICK_REPLY)
        seconds = time.perf_counter() - start
        self.history.add(reply.labels, reply.confidences, reply.entropies, latency=seconds)
        self.metrics.observe(seconds, reply.entropies.tolist())
        return reply.response

    async def _images(self, request: Request) -> Tensor:
        """Read and decode a request, whose body is held no longer than that takes."""
        client = client_of(request)
        with self.traffic.request(client) as take:
            kind, body = await body_of(request, self.limits, take)
            images = await self.decoders.decode(kind, body, client=client, gone=request.is_disconnected)
        return await _call(to_floats, images, quick=images.numel() <= QUICK_IMAGES)

    async def health(self) -> dict[str, str]:
        """Tell that the process runs."""
        return {"status": "alive"}

    async def ready(self) -> dict[str, str]:
        """Tell whether predictions are answered."""
        if not self.engine.ready:
            raise Refused(503, "the service is starting or stopping; try again later")
        return {"status": "ready"}

    async def stats(self) -> dict[str, Any]:
        """Tell where images went, what the adapter holds, and what happened."""
        return self.engine.stats()

    async def recent(self) -> dict[str, Any]:
        """Tell the last minutes, second by second, and the classes predicted in the last one."""
        now = int(self.history.clock())
        return {"time": now, "points": self.history.points(), "classes": self.history.class_mix()}

    async def scrape(self) -> Response:
        """Tell the metrics in the text form of Prometheus."""
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4")

    def _reply(self, answer: Answer) -> Reply:
        """Turn logits into an answer."""
        logits, names = answer.logits.double(), self.engine.names
        probabilities, entropies = logits.softmax(dim=1).numpy(), entropy(logits).numpy()
        if not np.isfinite(entropies).all():  # JSON cannot say it, and no mean over the last minutes would survive it
            raise Refused(500, "the model's answer is not finite; look at the image and at the model")
        labels, confidences = probabilities.argmax(axis=1), probabilities.max(axis=1)
        rounded = (np.round(values, 6).tolist() for values in (confidences, entropies, probabilities))
        predictions = [
            {"label": label, "name": names[label], "confidence": most, "entropy": nats, "probabilities": every}
            for label, most, nats, every in zip(labels.tolist(), *rounded, strict=True)
        ]
        content = {"predictions": predictions, "version": answer.version, "learned": answer.learned}
        return Reply(JSONResponse(content), labels, confidences, entropies)


def to_floats(images: Tensor) -> Tensor:
    """Images in [0, 1], from bytes where they are no numbers yet.

    >>> to_floats(torch.tensor([0, 51], dtype=torch.uint8))
    tensor([0.0000, 0.2000])
    """
    return images.float() / 255 if images.dtype == torch.uint8 else images


async def _call(function: Callable[[T], V], argument: T, *, quick: bool) -> V:
    """Call a function here if it is quick, else in a thread, so that the event loop goes on."""
    return function(argument) if quick else await asyncio.to_thread(function, argument)
