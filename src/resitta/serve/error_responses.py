"""Every refusal is JSON with one sentence, whoever refuses."""

import asyncio
from contextlib import suppress

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from resitta.errors import ResittaError
from resitta.serve.http_errors import Refused
from resitta.serve.metrics import Metrics

LINGER_BYTES, LINGER_SECONDS = 32 * 2**20, 2.0
"""What a refused client may still send, and for how long, before its connection is closed."""


def add_refusals(app: FastAPI, metrics: Metrics) -> None:
    """Answer every exception with its status and a sentence, and count it."""

    def answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
        metrics.refusals.labels(status=str(status)).inc()
        return JSONResponse({"error": sentence}, status, headers)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status, {})
        metrics.refusals.labels(status=str(error.status)).inc()
        kind = Lingering if error.close else JSONResponse
        return kind({"error": str(error)}, error.status, headers)

    @app.exception_handler(ResittaError)
    async def unsuitable(_: Request, error: ResittaError) -> JSONResponse:
        return answer(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return answer(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        sentence = f"{request.method} {request.url.path[:100]}: {error.detail}; /openapi.json lists what there is"
        return answer(error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return answer(500, f"the service failed ({type(error).__name__}); its log says more")


class Lingering(JSONResponse):
    """The last answer of a connection, to a client that may be still sending.

    If the connection were closed with bytes unread, the system would reset it, and the client might never see the
    answer. So what it sends is read and dropped, up to a limit, after the answer and before the end.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, drop the rest of the request, close."""
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await _drop(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop(receive: Receive) -> None:
    left = LINGER_BYTES
    while left > 0 and (message := await receive())["type"] == "http.request" and message.get("more_body", False):
        left -= len(message.get("body", b""))
