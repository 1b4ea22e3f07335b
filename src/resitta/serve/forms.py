"""From the body of a request to the bytes of its images, by content type. Worker processes import this."""

import base64
import binascii
import json
import re
from email.message import Message

from resitta.serve.http_errors import Refused

RAW = ("image/jpeg", "image/png", "image/webp", "application/x-npy", "application/octet-stream")
JSON = "application/json"
MULTIPART = "multipart/form-data"
HEADERS = 4096
"""Bytes of the headers of one part of a form."""


def kind_of(content_type: str) -> str:
    """The content type without its parameters.

    >>> kind_of("Multipart/Form-Data; boundary=x")
    'multipart/form-data'
    """
    return content_type.partition(";")[0].strip().lower()


def payloads(content_type: str, body: bytes, most: int) -> list[bytes]:
    """The bytes of each image in a body, of which there may be so many.

    >>> payloads("application/json", b'{"images": ["YQ==", "Yg=="]}', 2)
    [b'a', b'b']
    """
    kind = kind_of(content_type)
    if kind == JSON:
        return _texts(body, most)
    return _parts(content_type, body, most) if kind == MULTIPART else [body]


def _texts(body: bytes, most: int) -> list[bytes]:
    wanted = 'the JSON must be {"images": ["<base64>", ...]}'
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"{wanted}: {str(error)[:100]}") from None
    texts = found.get("images") if isinstance(found, dict) and len(found) == 1 else None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise Refused(400, f"{wanted} and nothing else, with one text for each image")
    if len(texts) > most:
        raise Refused(400, f"a request may hold {most} images, found {len(texts)}; send several")
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (binascii.Error, ValueError) as error:
        raise Refused(400, f"an image is not base64 ({error}); encode the bytes of its file") from None


def _parts(content_type: str, body: bytes, most: int) -> list[bytes]:
    """The files of a form, found by its boundary; each part is looked at once, whatever it holds."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise Refused(400, "the multipart body cannot be read: Content-Type names no boundary; send it anew")
    line = re.compile(rb"(?:\A|\r\n)--" + re.escape(boundary.encode("latin-1", "replace")) + rb"(--)?[ \t]*(?=\r\n|\Z)")
    found: list[bytes] = []
    start: int | None = None
    for border in line.finditer(body):
        if start is not None:
            found.append(_file(body[start : border.start()]))
        if len(found) > most:
            raise Refused(400, f"a request may hold {most} files, found more; send several requests")
        if border[1]:
            return found
        start = border.end()
    raise Refused(400, "the multipart body cannot be read: its last boundary is missing; send the whole body")


def _file(part: bytes) -> bytes:
    """The content of a part of a form, which must be a file."""
    head, blank, content = part.partition(b"\r\n\r\n")
    if not blank or len(head) > HEADERS:
        raise Refused(400, f"the multipart body cannot be read: a part needs headers of at most {HEADERS} bytes")
    if not re.search(rb"\r\ncontent-disposition:[ \t]*form-data[^\r\n]*;[ \t]*filename\*?=", head, re.IGNORECASE):
        raise Refused(400, "the multipart body may hold files only, found another field; leave it out")
    return content
