"""The body of a request, read within a time and a size, and left as it is: workers take it apart."""

import asyncio
from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from resitta.serve.body_budget import Take
from resitta.serve.forms import JSON, MULTIPART, RAW, kind_of
from resitta.serve.http_errors import Refused
from resitta.serve.settings import Limits

Base64 = Annotated[str, Field(min_length=1, json_schema_extra={"format": "byte", "contentEncoding": "base64"})]


class Base64Images(BaseModel):
    """Images as text: the bytes of JPEG, PNG, WebP or npy files in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)

    images: Annotated[list[Base64], Field(min_length=1)]


async def body_of(request: Request, limits: Limits, take: Take) -> tuple[str, bytearray]:
    """Read a request and return its content type and its body; `take` counts what arrives."""
    content_type = request.headers.get("content-type", "")
    if kind_of(content_type) not in (*RAW, JSON, MULTIPART):
        known = ", ".join((*RAW, MULTIPART, JSON))
        raise Refused(415, f"Content-Type must be one of {known}, found {content_type[:60]!r}", close=True)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "send the body without a Content-Encoding; images are compressed already", close=True)
    return content_type, await read_body(request, limits, take)


async def read_body(request: Request, limits: Limits, take: Take) -> bytearray:
    """Collect the body, but neither more bytes nor for longer than allowed."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limits.max_body:
        raise _too_long(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                take(len(chunk))
                body += chunk
                if len(body) > limits.max_body:
                    raise _too_long(limits)
    except ClientDisconnect:
        raise Refused(499, "the client has gone before its request was complete", close=True) from None
    except TimeoutError:
        sentence = f"the body did not arrive within {limits.body_timeout:g} s; send fewer images at once"
        raise Refused(408, sentence, close=True) from None
    return body


def _too_long(limits: Limits) -> Refused:
    return Refused(413, f"a request may have {limits.max_body:,} bytes; send fewer images at once", close=True)
