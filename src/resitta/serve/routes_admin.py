"""The routes that only holders of the token may use: they change the state or show images."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from torch import Tensor

from resitta.report.png import data_uri, to_pixels
from resitta.serve import schema
from resitta.serve.inline import result
from resitta.serve.service import Service
from resitta.serve.writer import Task

SHOWN = 128
"""How many images of the memory are shown: the youngest of a larger one."""


class Control:
    """Each route is a task for the writer."""

    def __init__(self, engine: Service) -> None:
        self.engine = engine
        self.writer = engine.writer

    def routes(self) -> APIRouter:
        """Give every method its path."""
        router = APIRouter(responses=schema.refusals(401, 403, 503, 507))
        for control in (self.pause, self.resume, self.reset, self.snapshot):
            router.post(f"/{control.__name__}", response_model=schema.State)(control)
        router.post("/rollback", response_model=schema.RolledBack, responses=schema.refusals(409, 422))(self.rollback)
        router.get("/bank", response_model=list[schema.Sample])(self.bank)
        return router

    async def pause(self) -> dict[str, Any]:
        """Stop learning; predictions go on."""
        return await self._change("pause")

    async def resume(self) -> dict[str, Any]:
        """Learn again."""
        return await self._change("resume")

    async def reset(self) -> dict[str, Any]:
        """Go back to the source model."""
        return await self._change("reset")

    async def snapshot(self) -> dict[str, Any]:
        """Save the state now."""
        return await self._change("snapshot")

    async def rollback(self, version: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
        """Go back to a snapshot: the newest that can be read, or that of a version listed in /stats."""
        done = await self._ask("rollback", version)
        return {**done, "learning": not self.writer.report().paused}

    async def bank(self) -> list[dict[str, Any]]:
        """Show what the memory of samples holds, the youngest first."""
        images, labels, ages, entropies = await self._ask("bank", SHOWN)
        rows = zip(await asyncio.to_thread(_pictures, images), labels, ages, entropies, strict=True)
        return [dict(zip(("image", "label", "age", "entropy"), row, strict=True)) for row in rows]

    async def _change(self, task: Task) -> dict[str, Any]:
        await self._ask(task)
        report = self.writer.report()
        return {"version": report.version, "learning": not report.paused}

    async def _ask(self, task: Task, *arguments: Any) -> Any:
        return await result(self.writer.ask(task, *arguments), self.engine.limits.answer_timeout)


def _pictures(images: Tensor) -> list[str]:
    return [data_uri(picture) for picture in to_pixels(images)]
