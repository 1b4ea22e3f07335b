"""HTTP: an engine as a FastAPI application."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from resitta.serve.allowed_hosts import AllowedHosts
from resitta.serve.error_responses import add_refusals
from resitta.serve.pages import add_pages
from resitta.serve.routes_admin import Control
from resitta.serve.routes_predict import Predicting
from resitta.serve.security import check_site, token_holder
from resitta.serve.service import Service
from resitta.serve.settings import Resize


def create_app(
    engine: Service, *, token: str, resize: Resize = "crop", names: Collection[str] | None = None
) -> FastAPI:
    """Make the service around an engine, which it starts and closes; the token is for the routes of `Control`.

    `names` of hosts are those that it answers to; None stands for any.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        async with predicting.decoders:
            with engine:
                yield

    app = FastAPI(
        title="resitta",
        description="Predictions from a model that adapts while it serves.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads its script from elsewhere; ours is in `pages`
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(check_site)],
    )
    predicting = Predicting(engine, resize)
    app.state.token, app.state.limits, app.state.metrics = token, engine.limits, predicting.metrics
    app.include_router(predicting.routes())
    app.include_router(Control(engine).routes(), dependencies=[Depends(token_holder(token))])
    add_pages(app)
    add_refusals(app, predicting.metrics)
    if names is not None:
        app.add_middleware(AllowedHosts, names=names, metrics=predicting.metrics)
    app.openapi()  # is kept; made when it is asked for, it would hold up the event loop
    return app
