"""Every refusal is JSON with one sentence, whoever refuses."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from resitta.errors import ResittaError
from resitta.serve.metrics import Metrics
from resitta.serve.refused import Refused


def add_refusals(app: FastAPI, metrics: Metrics) -> None:
    """Answer every exception with its status and a sentence, and count it."""

    def answer(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
        metrics.refusals.labels(status=str(status)).inc()
        return JSONResponse({"error": sentence}, status, headers)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status, {})
        return answer(error.status, str(error), headers | ({"Connection": "close"} if error.close else {}))

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
