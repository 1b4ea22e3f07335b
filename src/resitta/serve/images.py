"""From the bytes of pictures and arrays to a batch of one size, without ever trusting what a header promises."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib import format as npy
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from resitta.serve.refused import Refused
from resitta.serve.settings import Resize

NPY_MAGIC = b"\x93NUMPY"
FORMATS = ("JPEG", "PNG", "WEBP")
MARGIN = 224 / 256
"""The part of a picture's shorter side that is left after the crop, as ImageNet is evaluated."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Turns what clients send into float images in [0, 1], N×3×size×size.

    Pictures (JPEG, PNG, WebP) and uint8 arrays (H×W×3 or N×H×W×3) are brought to size: "crop" cuts out the central
    square, 7/8 of the shorter side, and scales it; "stretch" scales the whole picture; those that have the size already
    stay as they are. Float arrays (3×H×W or N×3×H×W) must have the size and lie in [0, 1].

    >>> decoder = Decoder(size=8)
    >>> array = io.BytesIO()
    >>> np.save(array, np.zeros((2, 20, 10, 3), np.uint8))
    >>> decoder([array.getvalue()]).shape
    torch.Size([2, 3, 8, 8])
    """

    size: int
    resize: Resize = "crop"
    max_images: int = 64
    max_pixels: int = 40_000_000

    def __call__(self, payloads: Sequence[bytes]) -> Tensor:
        """Decode the images of one request, one after the other, so that only one is ever held in full."""
        if not payloads:
            raise Refused(400, "the request holds no image; send at least one")
        images: list[Tensor] = []
        pixels = 0
        for payload in payloads:
            found, seen = self._array(payload) if payload.startswith(NPY_MAGIC) else self._picture(payload, pixels)
            pixels += seen
            self._check_pixels(pixels)
            images += found
            if len(images) > self.max_images:
                raise Refused(400, f"a request may hold {self.max_images} images, found more; send several requests")
        return torch.stack(images)

    def _check_pixels(self, pixels: int) -> None:
        if pixels > self.max_pixels:
            found = f"the images of a request may have {self.max_pixels:,} pixels together, found {pixels:,}"
            raise Refused(413, f"{found}; make them smaller")

    def _picture(self, raw: bytes, before: int) -> tuple[list[Tensor], int]:
        """Decode a compressed picture, once its header promises few enough pixels."""
        try:
            with Image.open(io.BytesIO(raw), formats=FORMATS) as picture:
                pixels = picture.width * picture.height
                self._check_pixels(before + pixels)
                return [self._fit(rgb(picture))], pixels
        except UnidentifiedImageError:
            raise Refused(415, "found data that is no JPEG, PNG, WebP or npy; convert it to one of them") from None
        except Image.DecompressionBombError:
            raise Refused(413, f"an image may have {self.max_pixels:,} pixels, found more; make it smaller") from None
        except Refused:
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
            raise Refused(400, f"an image is damaged ({type(error).__name__}); send the whole file") from error

    def _fit(self, picture: Image.Image) -> Tensor:
        """Bring a picture to size in one step, so that a very long one is never enlarged along its length."""
        width, height = picture.size
        side = min(width, height) * MARGIN
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side) if self.resize == "crop" else (0, 0, width, height)
        if picture.size != (self.size, self.size):
            picture = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255

    def _array(self, raw: bytes) -> tuple[list[Tensor], int]:
        """Read an npy array of pictures or of images; its length must be what its header says."""
        array = read_npy(raw)
        pictures = array.dtype == np.uint8
        array = array[None] if array.ndim == 3 else array
        pixels = array.size // 3
        self._check_pixels(pixels)
        if array.ndim != 4 or array.shape[3 if pictures else 1] != 3 or not 0 < len(array) <= self.max_images:
            wanted = f"1 to {self.max_images} images: uint8 N×H×W×3 or float N×3×H×W"
            raise Refused(400, f"an npy array must hold {wanted}, found {array.dtype} {array.shape}")
        return ([self._fit(Image.fromarray(a)) for a in array] if pictures else self._floats(array)), pixels

    def _floats(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> list[Tensor]:
        if array.shape[2:] != (self.size, self.size):
            raise Refused(400, f"float images must be 3×{self.size}×{self.size}, found {array.shape}; resize them")
        floats = torch.from_numpy(array.copy())
        if not (floats.min() >= 0 and floats.max() <= 1):  # NaN fails both
            raise Refused(400, "float images must be finite and lie in [0, 1]; divide by 255, or send uint8")
        return list(floats.float())


def rgb(picture: Image.Image) -> Image.Image:
    """Three channels of 8 bits; Pillow by itself would clip pictures of 16 bits instead of scaling them.

    >>> rgb(Image.fromarray(np.full((1, 1), 257 * 100, np.uint16))).getpixel((0, 0))
    (100, 100, 100)
    """
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) / 257).round().astype(np.uint8))
    return picture.convert("RGB")


def read_npy(raw: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """Read an array of bytes or floats; never objects, never more memory than was sent."""
    stream = io.BytesIO(raw)
    try:
        read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # a hostile header can make its parser raise anything
        raise Refused(400, f"the npy header is damaged ({type(error).__name__}); write it with numpy.save") from error
    if dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise Refused(400, f"an npy array must be uint8, float16, float32 or float64, found {dtype}")
    size = 1
    for length in shape:  # Python's whole numbers do not overflow
        size *= length
    data = raw[stream.tell() :]
    if min(shape, default=0) < 1 or size * dtype.itemsize != len(data):
        raise Refused(400, f"the npy header says shape {str(shape)[:60]} of {dtype}, but {len(data)} bytes follow it")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
