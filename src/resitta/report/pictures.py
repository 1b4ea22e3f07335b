"""The images of a page: pieces of the stream, and what the bank holds."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.errors import BadImages, require
from resitta.memory.memory import Memory

Pixels = NDArray[np.uint8]
"""An image as uint8: H×W×3, or H×W for grey."""


@dataclass(frozen=True)
class Strip:
    """Images in a row, such as one of every domain; `labels` stand below them."""

    caption: str
    images: Sequence[Pixels]
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class BankItem:
    """A sample in the bank: its image, predicted label, age in samples, and entropy in nats."""

    image: Pixels
    label: str
    age: int
    entropy: float


def bank_items(memory: Memory | None, classes: Sequence[str] = ()) -> tuple[BankItem, ...]:
    """Return all samples of a memory, sorted by label and age; `memory` is `adapter.learner.memory()`."""
    if memory is None:
        return ()
    names = [classes[label] if label < len(classes) else str(label) for label in memory.labels]
    rows = zip(to_pixels(memory.samples), names, memory.ages.tolist(), memory.entropies.tolist(), strict=True)
    return tuple(sorted((BankItem(*row) for row in rows), key=lambda item: (item.label, item.age)))


def to_pixels(images: Tensor) -> Pixels:
    """Turn a batch N×3×H×W, floats in [0, 1] or uint8, into pictures N×H×W×3."""
    if images.dtype != torch.uint8:
        images = images.detach().float().clamp(0, 1).mul(255).round().to(torch.uint8)
    pixels: Pixels = images.permute(0, 2, 3, 1).cpu().numpy()
    return pixels


def data_uri(image: Pixels, *, side: int = 96) -> str:
    """Encode an image as the source of an `<img>`: a PNG of at most `side` pixels, shrunk by averaging blocks."""
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise BadImages(f"a picture must be uint8 H×W×3 or H×W, found {image.dtype} {image.shape}; see to_pixels")
    picture = require("PIL.Image", "bench").fromarray(image)
    file = io.BytesIO()
    picture.reduce(-(-max(picture.size) // side)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
