"""Images in the forms clients send them, and patience with threads."""

import io
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from resitta.serve.service import Service
from resitta.serve.writer import Writer

TOKEN = "the token of the tests"
SIZE = 10


def picture(kind: str = "PNG", *, seed: int = 0, width: int = SIZE, height: int = SIZE) -> bytes:
    """A file with random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def array(values: Any) -> bytes:
    """An npy file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait for a thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def writer_of(service: Service) -> Writer:
    """The writer of a service that learns in this process."""
    assert isinstance(service.writer, Writer)
    return service.writer


def images(n: int, seed: int = 0) -> torch.Tensor:
    """Random images."""
    return torch.rand(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


@cache
def grey16(width: int, height: int) -> bytes:
    """A PNG of 16 bits per pixel, all black: few bytes, many pixels."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint16)).save(file, "PNG", compress_level=6)
    return file.getvalue()


def scan_bomb(width: int, height: int, scans: int) -> bytes:
    """A progressive JPEG that promises many pixels and goes over all of them in each of its scans, of 11 bytes each."""
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "JPEG", progressive=True)
    raw = file.getvalue()
    size = raw.index(b"\xff\xc2") + 5
    raw = raw[:size] + height.to_bytes(2) + width.to_bytes(2) + raw[size + 4 :]
    return raw[:-2] + raw[raw.rindex(b"\xff\xda") : -2] * scans + raw[-2:]
