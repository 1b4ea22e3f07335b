"""From the bytes of pictures and arrays to a batch of one size, without ever trusting what a header promises.

Worker processes import this, so it uses Pillow and NumPy alone.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from resitta.serve import files
from resitta.serve.http_errors import Refused

NPY_MAGIC = b"\x93NUMPY"
FORMATS = ("JPEG", "PNG", "WEBP")
MARGIN = 224 / 256
"""The part of a picture's shorter side that is left after the crop, as ImageNet is evaluated."""
ROWS = 256
"""Rows of a picture of 16 bits that are scaled at once."""

Array = NDArray[Any]


class TooMuchWork(Exception):
    """The images are within all limits but one: that of the work which this decoder takes on."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Turns what clients send into images, N×3×size×size: uint8 for pictures, else float32 in [0, 1].

    Pictures (JPEG, PNG, WebP) and uint8 arrays (H×W×3 or N×H×W×3) are brought to size: "crop" cuts out the central
    square, 7/8 of the shorter side, and scales it; "stretch" scales the whole picture; those that have the size already
    stay as they are. Float arrays (3×H×W or N×3×H×W) must have the size and lie in [0, 1].

    `max_work` limits the pixels that decoding goes over, scan by scan; past it `TooMuchWork` is raised.

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
        """Decode the images of one request, one after the other, so that only one is ever held in full."""
        if not payloads:
            raise Refused(400, "the request holds no image; send at least one")
        images: list[Array] = []
        pixels = work = 0
        for payload in payloads:
            found, seen, passes = (
                self._array(payload) if payload.startswith(NPY_MAGIC) else self._picture(payload, pixels, work)
            )
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
        """Decode a compressed picture, once its header promises few enough pixels."""
        passes = files.passes(raw)
        try:
            with Image.open(io.BytesIO(raw), formats=FORMATS) as picture:
                seen = picture.width * picture.height
                self._check_pixels(pixels + seen, work + seen * passes)
                self._check_memory(files.memory(picture, passes))
                return [self._fit(rgb(picture))], seen, passes
        except UnidentifiedImageError:
            raise Refused(415, "found data that is no JPEG, PNG, WebP or npy; convert it to one of them") from None
        except Image.DecompressionBombError:
            raise Refused(413, f"an image may have {self.max_pixels:,} pixels, found more; make it smaller") from None
        except (Refused, TooMuchWork, MemoryError):
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
            raise Refused(400, f"an image is damaged ({type(error).__name__}); send the whole file") from error

    def _check_memory(self, needed: int) -> None:
        if needed > self.max_memory:
            most = f"decoding an image may take {self.max_memory >> 20} MiB"
            raise Refused(413, f"{most}, this one takes {needed >> 20}; make it smaller, or save it as a baseline JPEG")

    def _fit(self, picture: Image.Image) -> Array:
        """Bring a picture to size in one step, so that a very long one is never enlarged along its length."""
        width, height = picture.size
        side = min(width, height) * MARGIN
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side) if self.resize == "crop" else (0, 0, width, height)
        if picture.size != (self.size, self.size):
            picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return np.asarray(picture).transpose(2, 0, 1)

    def _array(self, raw: bytes) -> tuple[list[Array], int, int]:
        """Read an npy array of pictures or of images; its length must be what its header says."""
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
    """A picture's bytes as numbers in [0, 1].

    >>> to_float(np.uint8([0, 51]))
    array([0. , 0.2], dtype=float32)
    """
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def rgb(picture: Image.Image) -> Image.Image:
    """Three channels of 8 bits; Pillow by itself would clip pictures of 16 bits instead of scaling them.

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
    """Read an array of bytes or floats; never objects, never more memory than was sent."""
    stream = io.BytesIO(raw)
    try:
        read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # a hostile header can make its parser raise anything
        raise Refused(400, f"the npy header is damaged ({type(error).__name__}); write it with numpy.save") from error
    if dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise Refused(400, f"an npy array must be uint8, float16, float32 or float64, found {dtype}")
    data = memoryview(raw)[stream.tell() :]
    lengths = [length for length in shape if type(length) is int and 0 < length <= len(data)]  # True is an int as well
    if not 0 < len(lengths) == len(shape) <= 4 or math.prod(lengths) * dtype.itemsize != len(data):
        says = str(shape)[:60] if max(shape, default=0) < 2**63 else "beyond any memory"
        raise Refused(400, f"the npy header says shape {says} of {dtype}, but {len(data)} bytes follow it")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
