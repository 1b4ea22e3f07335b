"""From a request to the bytes of its images: read within a time and a size, then taken apart by content type."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from resitta.serve.refused import Refused
from resitta.serve.settings import Limits
from resitta.serve.traffic import Take

RAW = ("image/jpeg", "image/png", "image/webp", "application/x-npy", "application/octet-stream")
JSON = "application/json"
MULTIPART = "multipart/form-data"


Base64 = Annotated[str, Field(min_length=1, json_schema_extra={"format": "byte", "contentEncoding": "base64"})]


class Base64Images(BaseModel):
    """Images as text: the bytes of JPEG, PNG, WebP or npy files in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)

    images: Annotated[list[Base64], Field(min_length=1)]


async def payloads(request: Request, limits: Limits, take: Take) -> list[bytes]:
    """Read a request and return the bytes of each image in it; `take` counts what arrives."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (*RAW, JSON, MULTIPART):
        known = ", ".join((*RAW, MULTIPART, JSON))
        raise Refused(415, f"Content-Type must be one of {known}, found {kind[:60]!r}", close=True)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "send the body without a Content-Encoding; images are compressed already", close=True)
    body = await read_body(request, limits, take)
    if kind == MULTIPART:
        return await _parts(request.headers, body, limits)
    return _texts(body, limits) if kind == JSON else [body]


async def read_body(request: Request, limits: Limits, take: Take) -> bytes:
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
    except TimeoutError:
        sentence = f"the body did not arrive within {limits.body_timeout:g} s; send fewer images at once"
        raise Refused(408, sentence, close=True) from None
    return bytes(body)


def _too_long(limits: Limits) -> Refused:
    return Refused(413, f"a request may have {limits.max_body:,} bytes; send fewer images at once", close=True)


async def _parts(headers: Headers, body: bytes, limits: Limits) -> list[bytes]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(headers, stream(), max_files=limits.max_images, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        advice = f"send up to {limits.max_images} files, and no other fields"
        raise Refused(400, f"the multipart body cannot be read: {error.message.rstrip('.')}; {advice}") from None
    except Exception as error:  # its parser trips over some malformed bodies
        raise Refused(400, f"the multipart body is damaged ({type(error).__name__}); send it anew") from error
    try:
        return [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]
    finally:
        await form.close()


def _texts(body: bytes, limits: Limits) -> list[bytes]:
    try:
        texts = Base64Images.model_validate_json(body).images
        if len(texts) > limits.max_images:
            raise Refused(400, f"a request may hold {limits.max_images} images, found {len(texts)}; send several")
        return [base64.b64decode(text, validate=True) for text in texts]
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise Refused(400, f'the JSON must be {{"images": ["<base64>", ...]}}: {reason}') from None
    except ValueError as error:
        raise Refused(400, f"an image is not base64 ({error}); encode the bytes of its file") from None
