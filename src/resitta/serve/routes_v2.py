"""The Open Inference Protocol (KServe v2) over HTTP: the same predictions, limits and learning as `/predict`."""

import asyncio
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

import resitta
from resitta.serve.http_errors import Refused
from resitta.serve.reader import Answer
from resitta.serve.request_body import read_bytes
from resitta.serve.routes_predict import (
    INLINE_INPUTS,
    INLINE_LOGITS,
    PredictRoutes,
    Scores,
    call,
    to_floats,
)
from resitta.serve.security import client_of
from resitta.serve.stream_names import StreamName
from resitta.serve.tensors import INPUT, OUTPUTS, Wanted, write_answer

JSON_LENGTH = "Inference-Header-Content-Length"
"""The header with the length of the JSON, if binary tensors follow it."""


class V2Routes:
    """`/v2` and the routes below it, for one model. Every answer names the version of the state that predicted."""

    def __init__(self, predict: PredictRoutes, model: str) -> None:
        self.predict = predict
        self.service = predict.service
        self.model = model

    def routes(self) -> APIRouter:
        """Return a router with all routes; the protocol has a specification of its own."""
        router = APIRouter(prefix="/v2", include_in_schema=False)
        router.get("")(self.server)
        router.get("/health/live")(self.live)
        router.get("/health/ready")(self.ready)
        router.get("/models/{name}")(self.metadata)
        router.get("/models/{name}/ready")(self.model_ready)
        router.post("/models/{name}/infer")(self.infer)
        return router

    async def server(self) -> dict[str, Any]:
        """Describe the server."""
        return {"name": "resitta", "version": resitta.__version__, "extensions": ["binary_tensor_data"]}

    async def live(self) -> dict[str, bool]:
        """Report that the process runs."""
        return {"live": True}

    async def ready(self) -> dict[str, bool]:
        """Report whether predictions are answered."""
        await self.predict.ready()
        return {"ready": True}

    async def model_ready(self, name: str) -> dict[str, Any]:
        """Report whether the model answers."""
        self._check(name)
        return {"name": name, **await self.ready()}

    async def metadata(self, name: str) -> dict[str, Any]:
        """Describe the model's tensors."""
        self._check(name)
        side, classes = self.service.size, len(self.service.names)
        shapes = {"probabilities": [-1, classes], "logits": [-1, classes]}
        outputs = [{"name": out, "datatype": kind, "shape": shapes.get(out, [-1])} for out, kind in OUTPUTS.items()]
        images = {"name": INPUT, "datatype": "FP32", "shape": [-1, 3, side, side]}
        return {"name": name, "platform": "resitta", "inputs": [images], "outputs": outputs}

    async def infer(self, name: str, request: Request, stream: StreamName) -> Response:
        """Predict images, and learn from them."""
        self._check(name)
        start, client, predict = time.perf_counter(), client_of(request), self.predict
        async with asyncio.timeout(predict.limits.answer_timeout):
            with predict.budget.request(client) as take:
                body = await read_bytes(request, predict.limits, take)
                length = _json_length(request, len(body))
                decoded, wanted = await predict.decoders.decode_tensors(
                    length, body, client=client, gone=request.is_disconnected
                )
                del body
            images = await call(to_floats, decoded, inline=decoded.numel() <= INLINE_INPUTS)
            answer = await asyncio.wrap_future(self.service.submit(images, client, stream))
            inline = answer.logits.numel() <= INLINE_LOGITS
            response, scores = await call(partial(self._response, wanted=wanted), answer, inline=inline)
        if own := self.service.stream_of(client, stream):
            response.headers["X-Stream"] = own
        predict.observe(time.perf_counter() - start, scores)
        return response

    def _check(self, name: str) -> None:
        if name != self.model:
            raise Refused(404, f"there is no model {name[:100]!r}; this service has {self.model!r}", close=True)

    def _response(self, answer: Answer, wanted: Wanted) -> tuple[Response, Scores]:
        scores = Scores.of(answer)
        tensors = {**vars(scores), "logits": answer.logits.float().numpy()}
        head = {
            "model_name": self.model,
            "model_version": str(answer.version),
            "parameters": {"learned": answer.learned},
        }
        content, length = write_answer(tensors, wanted, **head)
        kind = "application/json" if length is None else "application/octet-stream"
        return Response(content, headers={} if length is None else {JSON_LENGTH: str(length)}, media_type=kind), scores


def _json_length(request: Request, size: int) -> int:
    """Return the length of the JSON in a body."""
    text = request.headers.get(JSON_LENGTH, str(size))
    if not text.isdecimal() or len(text) > len(str(size)) or int(text) > size:
        raise Refused(400, f"{JSON_LENGTH} must be at most {size}, the length of the body, found {text[:20]!r}")
    return int(text)
