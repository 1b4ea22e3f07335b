"""Images inside a page: a small PNG writer on zlib, so that a report needs no image library."""

import base64
import struct
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadImages

Pixels = NDArray[np.uint8]
"""An image as uint8: H×W×3, or H×W for grey."""


def png(image: Pixels) -> bytes:
    """Encode an image without loss.

    >>> png(np.zeros((2, 2, 3), np.uint8))[1:4]
    b'PNG'
    """
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise BadImages(f"a picture must be uint8 H×W×3 or H×W, found {image.dtype} {image.shape}; see to_pixels")
    height, width = image.shape[:2]
    rows = np.ascontiguousarray(image).reshape(height, -1)
    unfiltered = np.pad(rows, ((0, 0), (1, 0)))  # each row begins with its filter type: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(image: Pixels, *, side: int = 96) -> str:
    """An image as the source of an `<img>`, shrunk to at most `side` pixels by averaging whole blocks of pixels."""
    image = np.asarray(image)
    return "data:image/png;base64," + base64.b64encode(png(_shrink(image, side))).decode()


def _shrink(image: Pixels, side: int) -> Pixels:
    block = -(-max(image.shape[:2]) // side)
    height, width = (max(1, length // block) for length in image.shape[:2])
    if block <= 1:
        return image
    blocks = image[: height * block, : width * block].reshape(height, block, width, block, -1)
    shrunk: Pixels = blocks.mean(axis=(1, 3)).round().astype(np.uint8).reshape(height, width, *image.shape[2:])
    return shrunk


def to_pixels(images: Tensor) -> Pixels:
    """Turn a batch N×3×H×W, floats in [0, 1] or uint8, into pictures N×H×W×3.

    >>> to_pixels(torch.ones(1, 3, 2, 2)).shape
    (1, 2, 2, 3)
    """
    if images.dtype != torch.uint8:
        images = images.detach().float().clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels: Pixels = images.permute(0, 2, 3, 1).cpu().numpy()
    return pixels
