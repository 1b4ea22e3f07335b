"""Decode the body of a request to a batch of images of one size, without trusting what a header promises.

Worker processes import this, so it uses Pillow and NumPy alone.
"""

import base64
import binascii
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from resitta.serve import files
from resitta.serve.http_errors import Refused

RAW = ("image/jpeg", "image/png", "image/webp", "application/x-npy", "application/octet-stream")
JSON = "application/json"
MULTIPART = "multipart/form-data"
PART_HEADERS = 4096
"""Bytes of the headers of one part of a multipart body."""
NPY_MAGIC = b"\x93NUMPY"
FORMATS = ("JPEG", "PNG", "WEBP")
MARGIN = 224 / 256
"""The fraction of the shorter side that the central crop keeps, as in the evaluation of ImageNet."""
ROWS = 256
"""Rows of a 16-bit picture that are scaled at once."""

Array = NDArray[Any]


class TooMuchWork(Exception):
    """The images exceed `max_work`, and no other limit."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Decodes files and arrays to images N×3×size×size: uint8 for pictures, else float32 in [0, 1].

    Pictures (JPEG, PNG, WebP) and uint8 arrays (H×W×3 or N×H×W×3) are resized: "crop" scales the central square, 7/8 of
    the shorter side; "stretch" scales the whole picture; those of the right size are unchanged. Float arrays (3×H×W or
    N×3×H×W) must have the right size and values in [0, 1].

    `max_work` limits the pixels of all passes (JPEG scans) together; beyond it `TooMuchWork` is raised.

    >>> decoder = Decoder(size=8)
    >>> array = io.BytesIO()
    >>> np.save(array, np.zeros((2, 20, 10, 3), np.uint8))
    >>> decoder([array.getvalue()]).shape
    (2, 3, 8, 8)
    """

    size: int
    resize: str = "crop"
    max_images: int = 64
    max_pixels: int = 40_000_000
    max_memory: int = 2**29
    max_work: int | None = None

    def __call__(self, payloads: Sequence[bytes]) -> Array:
        """Decode the images of one request, one at a time, so that only one is in memory at its full size."""
        if not payloads:
            raise Refused(400, "the request holds no image; send at least one")
        images: list[Array] = []
        pixels = work = 0
        for payload in payloads:
            is_array = payload.startswith(NPY_MAGIC)
            found, seen, passes = self._array(payload) if is_array else self._picture(payload, pixels, work)
            pixels += seen
            work += seen * passes
            self._check_pixels(pixels, work)
            images += found
            if len(images) > self.max_images:
                raise Refused(400, f"a request may hold {self.max_images} images, found more; send several requests")
        if not all(image.dtype == np.uint8 for image in images):
            images = [to_float(image) for image in images]
        return np.ascontiguousarray(np.stack(images))

    def _check_pixels(self, pixels: int, work: int) -> None:
        if pixels > self.max_pixels:
            found = f"the images of a request may have {self.max_pixels:,} pixels together, found {pixels:,}"
            raise Refused(413, f"{found}; make them smaller")
        if self.max_work is not None and work > self.max_work:
            raise TooMuchWork

    def _picture(self, raw: bytes, pixels: int, work: int) -> tuple[list[Array], int, int]:
        """Decode a compressed picture if its header declares few enough pixels."""
        passes = files.passes(raw)
        try:
            with Image.open(io.BytesIO(raw), formats=FORMATS) as picture:
                seen = picture.width * picture.height
                self._check_pixels(pixels + seen, work + seen * passes)
                if (needed := files.memory(picture, passes)) > self.max_memory:
                    found = f"decoding an image may take {self.max_memory >> 20} MiB, this one takes {needed >> 20}"
                    raise Refused(413, f"{found}; make it smaller, or save it as a baseline JPEG")
                return [self._fit(rgb(picture))], seen, passes
        except UnidentifiedImageError:
            raise Refused(415, "the data is not JPEG, PNG, WebP or npy; convert it to one of them") from None
        except Image.DecompressionBombError:
            raise Refused(413, f"an image may have {self.max_pixels:,} pixels, found more; make it smaller") from None
        except (Refused, TooMuchWork, MemoryError):
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
            raise Refused(400, f"an image is damaged ({type(error).__name__}); send the whole file") from error

    def _fit(self, picture: Image.Image) -> Array:
        """Crop and resize in one step, so that a very long picture is never enlarged along its length."""
        width, height = picture.size
        side = min(width, height) * MARGIN
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side) if self.resize == "crop" else (0, 0, width, height)
        if picture.size != (self.size, self.size):
            picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return np.asarray(picture).transpose(2, 0, 1)

    def _array(self, raw: bytes) -> tuple[list[Array], int, int]:
        """Read an npy array of uint8 pictures or float images."""
        array = read_npy(raw)
        pictures = array.dtype == np.uint8
        array = array[None] if array.ndim == 3 else array
        pixels = array.size // 3
        self._check_pixels(pixels, pixels)
        if array.ndim != 4 or array.shape[3 if pictures else 1] != 3 or not 0 < len(array) <= self.max_images:
            wanted = f"1 to {self.max_images} images: uint8 N×H×W×3 or float N×3×H×W"
            raise Refused(400, f"an npy array must hold {wanted}, found {array.dtype} {array.shape}")
        return ([self._fit(Image.fromarray(a)) for a in array] if pictures else self._floats(array)), pixels, 1

    def _floats(self, array: Array) -> list[Array]:
        if array.shape[2:] != (self.size, self.size):
            raise Refused(400, f"float images must be 3×{self.size}×{self.size}, found {array.shape}; resize them")
        if not (array.min() >= 0 and array.max() <= 1):  # NaN fails both
            raise Refused(400, "float images must be finite and lie in [0, 1]; divide by 255, or send uint8")
        return list(array.astype(np.float32))


def to_float(image: Array) -> Array:
    """Scale uint8 to [0, 1].

    >>> to_float(np.uint8([0, 51]))
    array([0. , 0.2], dtype=float32)
    """
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def rgb(picture: Image.Image) -> Image.Image:
    """Convert to 8-bit RGB. Pillow alone would clip 16-bit pictures instead of scaling them.

    >>> rgb(Image.fromarray(np.full((1, 1), 257 * 100, np.uint16))).getpixel((0, 0))
    (100, 100, 100)
    """
    if picture.mode.startswith("I"):
        values = np.asarray(picture)
        scaled = np.empty(values.shape, np.uint8)
        for top in range(0, len(values), ROWS):  # rounding takes four times the memory of the picture
            scaled[top : top + ROWS] = (values[top : top + ROWS].astype(np.int64) + 128) // 257
        picture = Image.fromarray(scaled)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def read_npy(raw: bytes) -> Array:
    """Read an array of uint8 or floats, without unpickling and without allocating more than was sent."""
    stream = io.BytesIO(raw)
    try:
        read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # the parser may raise anything on a hostile header
        raise Refused(400, f"the npy header is damaged ({type(error).__name__}); write it with numpy.save") from error
    if dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise Refused(400, f"an npy array must be uint8, float16, float32 or float64, found {dtype}")
    data = memoryview(raw)[stream.tell() :]
    lengths = [length for length in shape if type(length) is int and 0 < length <= len(data)]  # True is an int as well
    if not 0 < len(lengths) == len(shape) <= 4 or math.prod(lengths) * dtype.itemsize != len(data):
        says = str(shape)[:60] if max(shape, default=0) < 2**63 else "beyond any memory"
        raise Refused(400, f"the npy header says shape {says} of {dtype}, but {len(data)} bytes follow it")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def media_type(content_type: str) -> str:
    """Return a content type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def payloads(content_type: str, body: bytes, most: int) -> list[bytes]:
    """Return the bytes of each image in a body, at most `most`."""
    kind = media_type(content_type)
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
    """Split a multipart body at its boundary, in linear time for any input."""
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
    """Return the content of a part, which must be a file."""
    head, blank, content = part.partition(b"\r\n\r\n")
    if not blank or len(head) > PART_HEADERS:
        raise Refused(400, f"the multipart body cannot be read: a part needs headers of at most {PART_HEADERS} bytes")
    if not re.search(rb"\r\ncontent-disposition:[ \t]*form-data[^\r\n]*;[ \t]*filename\*?=", head, re.IGNORECASE):
        raise Refused(400, "the multipart body may hold files only, found another field; leave it out")
    return content
