"""The routes that need the token: they change the state or show images."""

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query

from resitta.report.pictures import data_uri, to_pixels
from resitta.serve import schema
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Task
from resitta.serve.service import Service

SHOWN = 128
"""Images of the memory that are shown, the youngest first."""


CONTROLS: dict[Task, str] = {
    "pause": "Stop learning; predictions continue.",
    "resume": "Resume learning.",
    "reset": "Go back to the source model.",
    "snapshot": "Save the state now.",
}
"""The tasks without arguments but the stream that they concern."""


async def controlled_stream(
    stream: Annotated[str | None, Query(description="Of a fleet: the one stream, as GET /streams names it.")] = None,
    x_stream: Annotated[str | None, Header(description="The same as the parameter stream.")] = None,
) -> str | None:
    """Read the full name of a stream from a request; none means all streams.

    A request that names a stream in either way must not change all of them.
    """
    if stream is not None and x_stream is not None and stream != x_stream:
        found = f"X-Stream {x_stream[:100]!r} and stream {stream[:100]!r}"
        raise Refused(400, f"a request concerns one stream, found {found}; leave out one of them")
    return x_stream if stream is None else stream


Controlled = Annotated[str | None, Depends(controlled_stream)]


class AdminRoutes:
    """Each route runs a task in the writer's thread."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.writer = service.writer

    def routes(self) -> APIRouter:
        """Return a router with all routes."""
        router, of_stream = (
            APIRouter(responses=schema.refusals(401, 403, 503, 507)),
            schema.refusals(400, 404, 409, 422),
        )
        for task, text in CONTROLS.items():
            change = partial(self._change, task)
            options: dict[str, Any] = {"response_model": schema.State, "responses": of_stream}
            router.post(f"/{task}", name=task, description=text, **options)(change)
        router.post("/rollback", response_model=schema.RolledBack, responses=schema.refusals(409, 422))(self.rollback)
        router.get("/bank", response_model=list[schema.Sample], responses=of_stream)(self.bank)
        return router

    async def rollback(self, version: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
        """Go back to a snapshot: the newest that can be read, or that of a version listed in /stats."""
        done = await self._ask("rollback", version)
        return {**done, "learning": not self.writer.report().paused}

    async def bank(self, stream: Controlled) -> list[dict[str, Any]]:
        """Return the samples in the memory, of a fleet in that of one stream, the youngest first."""
        of_stream = self.service.task_arguments(stream)
        images, labels, ages, entropies = await self._ask("bank", SHOWN, *of_stream)
        pictures = await asyncio.to_thread(lambda: [data_uri(pixels) for pixels in to_pixels(images)])
        rows = zip(pictures, labels, ages, entropies, strict=True)
        return [dict(zip(("image", "label", "age", "entropy"), row, strict=True)) for row in rows]

    async def _change(self, task: Task, stream: Controlled) -> dict[str, Any]:
        await self._ask(task, *self.service.task_arguments(stream))
        report = self.writer.report()
        return {"version": report.version, "learning": not report.paused}

    async def _ask(self, task: Task, *arguments: Any) -> Any:
        async with asyncio.timeout(self.service.limits.answer_timeout):  # cancels a task that has not begun
            done = await asyncio.wrap_future(self.writer.ask(task, *arguments))
        if task in ("reset", "rollback") and self.service.priors is not None:
            self.service.priors.clear()
        return done
