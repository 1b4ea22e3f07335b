"""A file is kept only if it predicts what the model predicts."""

from collections.abc import Iterable

import torch
from torch import Tensor

from resitta.errors import NotExportable
from resitta.exports.formats import Run, reason_of

TOLERANCE = 1e-4
"""How far logits may be apart, as a share of the largest one; where that is below 1, absolutely."""
BATCHES = (2, 1, 5)
"""The sizes of the batches to compare on."""


def random_batches(shape: tuple[int, ...]) -> list[Tensor]:
    """Images with random pixels in [0, 1], always the same.

    >>> [tuple(images.shape) for images in random_batches((3, 8, 8))]
    [(2, 3, 8, 8), (1, 3, 8, 8), (5, 3, 8, 8)]
    """
    generator = torch.Generator("cpu").manual_seed(0)
    return [torch.rand(size, *shape, generator=generator, device="cpu") for size in BATCHES]


def largest_difference(run: Run, model: Run, batches: Iterable[Tensor], *, of: str) -> float:
    """Compare the logits of a file with the model's, and return the largest difference; `of` names the file.

    >>> images = random_batches((2,))
    >>> largest_difference(lambda x: x + 1e-5, lambda x: x, images, of="the file") < 2e-5
    True
    >>> largest_difference(lambda x: 2 * x, lambda x: x, images, of="the file")
    Traceback (most recent call last):
        ...
    resitta.errors.NotExportable: the file does not predict what the model does: logits differ by 0.768 of 0.768, ...
    """
    return max(_difference(run, model, images, of) for images in batches)


def _difference(run: Run, model: Run, images: Tensor, of: str) -> float:
    expected = model(images)
    try:
        found = run(images)
    except Exception as error:  # each runtime has errors of its own
        raise NotExportable(f"{of} fails on a batch of {len(images)}: {reason_of(error)}; it is not kept") from error
    if found.shape != expected.shape:
        shapes = f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
        raise NotExportable(f"{of} returns logits of shape {shapes} for a batch of {len(images)}; it is not kept")
    apart, largest = (float(values.abs().max()) for values in (found - expected, expected))
    if not apart <= TOLERANCE * max(1.0, largest):  # also if one of them is NaN
        found_out = f"logits differ by {apart:.3g} of {largest:.3g}, allowed is {TOLERANCE * max(1.0, largest):.3g}"
        raise NotExportable(f"{of} does not predict what the model does: {found_out}; it is not kept")
    return apart
