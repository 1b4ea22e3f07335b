"""The FastAPI application around a service: routes, pages and error responses."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from resitta.errors import ResittaError
from resitta.serve.http_errors import Refused
from resitta.serve.metrics import ServiceMetrics
from resitta.serve.routes_admin import AdminRoutes
from resitta.serve.routes_feedback import FeedbackRoutes
from resitta.serve.routes_predict import PredictRoutes
from resitta.serve.routes_sample import Load, SampleRoutes, generated
from resitta.serve.routes_streams import StreamRoutes
from resitta.serve.routes_v2 import V2Routes
from resitta.serve.security import AllowedHosts, check_site, require_token
from resitta.serve.service import Service
from resitta.serve.settings import Resize

PAGES = {
    "/": ("resitta.serve", "page/index.html", "text/html"),
    "/docs": ("resitta.serve", "page/docs.html", "text/html"),
    "/docs.js": ("resitta.serve", "page/docs.js", "text/javascript"),
    "/page.css": ("resitta.serve", "page/page.css", "text/css"),
    "/page.js": ("resitta.serve", "page/page.js", "text/javascript"),
    "/streams.js": ("resitta.serve", "page/streams.js", "text/javascript"),
    "/try.js": ("resitta.serve", "page/try.js", "text/javascript"),
    "/base.css": ("resitta.report", "base.css", "text/css"),
    "/figures.js": ("resitta.report", "figures.js", "text/javascript"),
}
"""The files that a browser may load, each with its package, path and type."""
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
LINGER_BYTES, LINGER_SECONDS = 32 * 2**20, 2.0
"""How much a refused client may still send, and for how long, before its connection is closed."""


def create_app(
    service: Service,
    *,
    token: str,
    resize: Resize = "crop",
    names: Collection[str] | None = None,
    model_name: str = "resitta",
    model: str = "",
    samples: Load = generated,
) -> FastAPI:
    """Create the application around a service, which it starts and closes.

    `token` protects the routes of `AdminRoutes` and `FeedbackRoutes`. `names` are the host names it answers to; None
    means any. `model_name` is the model's name in the Open Inference Protocol, `model` the one it was given by.
    `samples` loads the images of `/sample`.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with predict.decoders:
            with service:
                async with predict.watching():
                    yield

    app = FastAPI(
        title="resitta",
        description="Predictions from a model that adapts while it serves.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads its script from another site
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_site)],
    )
    predict = PredictRoutes(service, resize, model)
    app.state.token, app.state.limits, app.state.metrics = token, service.limits, predict.metrics
    app.include_router(predict.routes())
    if service.streams() is not None:  # elsewhere the path is unknown: 404
        app.include_router(StreamRoutes(service).routes())
    app.include_router(SampleRoutes(samples).routes())
    app.include_router(V2Routes(predict, model_name).routes())
    app.include_router(FeedbackRoutes(service).routes(), dependencies=[Depends(require_token(token))])
    app.include_router(AdminRoutes(service).routes(), dependencies=[Depends(require_token(token))])
    for path, (package, file, kind) in PAGES.items():
        content = files(package).joinpath(file).read_bytes()
        app.add_api_route(path, partial(_page, content, kind), include_in_schema=False)
    _add_error_handlers(app, predict.metrics)
    if names is not None:
        app.add_middleware(AllowedHosts, names=names, metrics=predict.metrics)
    app.openapi()  # cached now; built on demand, it would block the event loop
    return app


async def _page(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind, headers=PAGE_HEADERS)


def _add_error_handlers(app: FastAPI, metrics: ServiceMetrics) -> None:
    """Answer every exception with a status and a JSON object that holds one sentence, and count it."""

    def respond(
        status: int, sentence: str, headers: dict[str, str] | None = None, kind: type[JSONResponse] = JSONResponse
    ) -> JSONResponse:
        metrics.refusals.labels(status=str(status)).inc()
        return kind({"error": sentence}, status, headers)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(error.status)
        return respond(error.status, str(error), headers, LastResponse if error.close else JSONResponse)

    @app.exception_handler(TimeoutError)
    async def too_slow(_: Request, __: TimeoutError) -> JSONResponse:
        return respond(503, f"no answer within {app.state.limits.answer_timeout:g} s; try again later")

    @app.exception_handler(ResittaError)
    async def unsuitable(_: Request, error: ResittaError) -> JSONResponse:
        return respond(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return respond(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        sentence = f"{request.method} {request.url.path[:100]}: {error.detail}; /openapi.json lists all routes"
        return respond(error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return respond(500, f"the service failed ({type(error).__name__}); see its log")


class LastResponse(JSONResponse):
    """The last response of a connection, for a client that may still be sending.

    Closing a connection with unread bytes resets it, and the client may lose the response. So the rest of the request
    is read and dropped first, up to a limit.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, drop the rest of the request, close the connection."""
        headers = [*self.raw_headers, (b"connection", b"close")]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        left, more = LINGER_BYTES, True
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and more:
                    message = await receive()
                    more = message["type"] == "http.request" and message.get("more_body", False)
                    left -= len(message.get("body", b""))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
