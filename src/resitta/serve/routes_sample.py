"""The route for sample images: something to send when nothing sends images yet."""

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import APIRouter, Query
from torch import Tensor

from resitta.data.corruptions import CORRUPTIONS, corrupt
from resitta.data.datasets import ArrayImages
from resitta.report.pictures import data_uri, to_pixels
from resitta.serve import schema

EACH = 400
"""Images with one corruption, before the next one begins."""
MOST = 16
"""Images of one request."""
SEVERITY = 5
LATEST = 2**31 - 1

Load = Callable[[], ArrayImages]
"""Returns the clean images; it is called once, when they are first asked for."""


class SampleRoutes:
    """`/sample`: a stream of corrupted images, any part of which can be asked for."""

    def __init__(self, load: Load) -> None:
        self.load = load

    def routes(self) -> APIRouter:
        """Return a router with the route."""
        router = APIRouter()
        router.get("/sample", responses={200: {"model": schema.Samples}, **schema.refusals(403, 422)})(self.sample)
        return router

    async def sample(
        self,
        start: Annotated[int, Query(ge=0, le=LATEST, description="The place of the first image in the stream.")] = 0,
        count: Annotated[int, Query(ge=1, le=MOST, description="How many images.")] = 8,
    ) -> dict[str, Any]:
        """Return images of a sample stream as PNG; every 400 images the corruption changes. Nothing is predicted."""
        return await asyncio.to_thread(self._sample, start, count)

    def _sample(self, start: int, count: int) -> dict[str, Any]:
        places = self._order[np.arange(start, start + count) % len(self._order)]
        corruption = CORRUPTIONS[start // EACH % len(CORRUPTIONS)]
        images: Tensor = corrupt(self._images.read(places.tolist()), corruption, SEVERITY)
        uris = [data_uri(pixels) for pixels in to_pixels(images)]
        return {"images": uris, "corruption": corruption, "severity": SEVERITY}

    @cached_property
    def _images(self) -> ArrayImages:
        return self.load()

    @cached_property
    def _order(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.random.default_rng(0).permutation(len(self._images))


def generated() -> ArrayImages:
    """Smooth colours with grain, for a service that has no photographs.

    >>> generated().read([0]).shape
    torch.Size([1, 3, 32, 32])
    """
    generator = torch.Generator().manual_seed(0)
    colours = torch.rand(256, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(colours, size=(32, 32), mode="bicubic", align_corners=False)
    images = (smooth + 0.03 * torch.randn(256, 3, 32, 32, generator=generator)).clamp(0, 1)
    return ArrayImages(images.mul(255).byte().numpy(), np.zeros(256, np.int64), classes=1)
