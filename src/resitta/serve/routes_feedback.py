"""The route for labels that arrive later; it needs the token, since labels decide which network answers."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError

from resitta.errors import BadLabels, near
from resitta.serve import schema
from resitta.serve.http_errors import Refused
from resitta.serve.images import JSON, media_type
from resitta.serve.request_body import BodyBudget, read_body
from resitta.serve.security import client_of
from resitta.serve.service import Service


class FeedbackRoutes:
    """`/feedback`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.budget = BodyBudget(service.limits.max_body)

    def routes(self) -> APIRouter:
        """Return a router with the route."""
        router = APIRouter()
        refusals = schema.refusals(400, 401, 403, 408, 409, 413, 415, 422, 429)
        options: dict[str, Any] = {"response_model": schema.LabelCount, "responses": refusals}
        router.post("/feedback", openapi_extra=schema.labels(), **options)(self.feedback)
        return router

    async def feedback(self, request: Request) -> dict[str, Any]:
        """Take labels of images that were predicted before, by the ids in the answers of /predict."""
        with self.budget.request(client_of(request)) as take:
            kind, body = await read_body(request, self.service.limits, take)
            if media_type(kind) != JSON:
                raise Refused(415, f"labels are sent as {JSON}, found {kind[:60]!r}")
            return await asyncio.to_thread(self._take, bytes(body))

    def _take(self, body: bytes) -> dict[str, Any]:
        try:
            found = schema.Labels.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(422, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
        return vars(self.service.feedback(found.ids, numbers(found.labels, self.service.names)))


def numbers(labels: Sequence[int | str], names: Sequence[str]) -> list[int]:
    """Labels as numbers of classes.

    >>> numbers([2, "cat"], ["ape", "bee", "cat"])
    [2, 2]
    """
    places = {name: place for place, name in enumerate(names)}
    for label in labels:
        if isinstance(label, str) and label not in places:
            raise BadLabels(f"no class is called {label[:64]!r}. {near(label[:64], names)}"[:400])
    return [places[label] if isinstance(label, str) else label for label in labels]
