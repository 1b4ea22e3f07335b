"""Wait in the event loop for what a thread does, but not forever."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TypeVar

from resitta.serve.http_errors import Refused

T = TypeVar("T")


@asynccontextmanager
async def in_time(seconds: float) -> AsyncGenerator[None, None]:
    """Give up what is done in the block after so many seconds, all of it together."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refused(503, f"no answer within {seconds:g} s; try again later") from None


async def result(future: "Future[T]", seconds: float) -> T:
    """What a thread found; after so many seconds it is given up, and not begun if it has not been begun yet."""
    async with in_time(seconds):
        return await asyncio.wrap_future(future)
