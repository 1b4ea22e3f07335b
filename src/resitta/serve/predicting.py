"""The routes that anyone who reaches the port may use: predictions, and numbers about them."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from resitta.components.entropy import entropy
from resitta.serve import schema
from resitta.serve.bodies import payloads
from resitta.serve.clients import client_of
from resitta.serve.engine import Engine
from resitta.serve.history import History
from resitta.serve.images import Decoder
from resitta.serve.metrics import Metrics
from resitta.serve.reader import Answer
from resitta.serve.refused import Refused
from resitta.serve.settings import Resize
from resitta.serve.traffic import Traffic
from resitta.serve.waiting import result

DECODERS = 2
"""Threads that decode images: each may hold one picture of `max_pixels` at a time."""


class Predicting:
    """`/predict` and the routes that tell how it goes."""

    def __init__(self, engine: Engine, resize: Resize) -> None:
        self.engine = engine
        self.limits = engine.limits
        self.traffic = Traffic(self.limits.max_bodies)
        self.history = History()
        self.metrics = Metrics(engine)
        self.decode = Decoder(
            size=engine.size, resize=resize, max_images=self.limits.max_images, max_pixels=self.limits.max_pixels
        )
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="resitta-decoder")

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
        with self.traffic.request() as take:
            found = await payloads(request, self.limits, take)
            images = await asyncio.get_running_loop().run_in_executor(self.decoders, self.decode, found)
            del found  # answered later, but not held any longer
        answer = await result(self.engine.submit(images, client_of(request)), self.limits.answer_timeout)
        return self._reply(answer, start)

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

    def _reply(self, answer: Answer, start: float) -> Response:
        """Turn logits into an answer, and note it."""
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
        seconds = time.perf_counter() - start
        self.history.add(labels, confidences, entropies, latency=seconds)
        self.metrics.observe(seconds, entropies.tolist())
        return JSONResponse({"predictions": predictions, "version": answer.version, "learned": answer.learned})
