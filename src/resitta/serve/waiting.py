"""Wait in the event loop for what a thread does, but not forever."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from resitta.serve.refused import Refused

T = TypeVar("T")


async def result(future: "Future[T]", seconds: float) -> T:
    """What a thread found; after so many seconds it is given up, and not begun if it has not been begun yet."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
    except TimeoutError:
        raise Refused(503, f"no answer within {seconds:g} s; try again later") from None
