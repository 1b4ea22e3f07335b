"""The list of streams, of a service that serves a fleet."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from resitta.serve import schema
from resitta.serve.service import Service

MOST_STREAMS = 10_000


class StreamRoutes:
    """`/streams`."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> APIRouter:
        """Return a router with the route."""
        router = APIRouter()
        router.get("/streams", response_model=schema.Streams, responses=schema.refusals(422))(self.streams)
        return router

    async def streams(self, limit: Annotated[int, Query(ge=1, le=MOST_STREAMS)] = 1000) -> dict[str, Any]:
        """List the streams with their drift and entropy."""
        rows = self.service.streams() or []
        return {"streams": rows[:limit], "total": len(rows)}
