"""The eleven faults of `faults.py`: each makes a stream of images, in [0, 1] unless the fault is that they are not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from resitta.data.datasets import ImageSet

Batches = Iterator[Tensor]


@dataclass(frozen=True)
class Source:
    """What faults are made from: images the adapter knows, foreign ones, the source model; and how long they last."""

    images: ImageSet
    foreign: ImageSet
    model: nn.Module
    length: int = 10_000
    batch_size: int = 64

    def ordinary(self, rng: np.random.Generator, *, label: int | None = None, foreign: bool = False) -> Batches:
        """Batches of stored images in random order without end, of one class if asked."""
        images = self.foreign if foreign else self.images
        choice = np.arange(len(images)) if label is None else np.flatnonzero(images.labels == label)
        while True:
            yield images.read(rng.choice(choice, self.batch_size)).float() / 255


Fault = Callable[[Source, np.random.Generator], Batches]


def no_fault(source: Source, rng: np.random.Generator) -> Batches:
    """The ordinary images alone, which some faults are hidden among."""
    return source.ordinary(rng)


def nan(source: Source, rng: np.random.Generator) -> Batches:
    """A tenth of the pixels is not a number."""
    for batch in source.ordinary(rng):
        yield batch.masked_fill(torch.from_numpy(rng.random(batch.shape) < 0.1), torch.nan)


def black(source: Source, rng: np.random.Generator) -> Batches:
    """The camera is covered."""
    return (torch.zeros_like(batch) for batch in source.ordinary(rng))


def equal(source: Source, rng: np.random.Generator) -> Batches:
    """The camera has frozen: one and the same picture."""
    picture = next(source.ordinary(rng))[:1]
    while True:
        yield picture.expand(source.batch_size, -1, -1, -1).clone()


def noise(source: Source, rng: np.random.Generator) -> Batches:
    """Every pixel is drawn at random."""
    return (torch.from_numpy(rng.random(batch.shape, np.float32)) for batch in source.ordinary(rng))


def one_class(source: Source, rng: np.random.Generator) -> Batches:
    """Nothing but one class."""
    return source.ordinary(rng, label=3)


def foreign(source: Source, rng: np.random.Generator) -> Batches:
    """Images of another data set, whose classes the model has never seen."""
    return source.ordinary(rng, foreign=True)


def huge_contrast(source: Source, rng: np.random.Generator) -> Batches:
    """Every pixel is black or fully lit."""
    return (((batch - 0.5) * 50 + 0.5).clamp(0, 1) for batch in source.ordinary(rng))


def tiny_contrast(source: Source, rng: np.random.Generator) -> Batches:
    """A hundredth of the contrast is left."""
    return ((batch - 0.5) * 0.01 + 0.5 for batch in source.ordinary(rng))


def poisoned(source: Source, rng: np.random.Generator) -> Batches:
    """Five frames in a hundred are noise, made so that the source model is sure of a class."""
    poison = confident_noise(source.model, torch.from_numpy(rng.random((200, 3, 32, 32), np.float32)))
    for batch in source.ordinary(rng):
        hit = torch.from_numpy(rng.random(len(batch)) < 0.05)
        batch[hit] = poison[torch.from_numpy(rng.integers(0, len(poison), int(hit.sum())))]
        yield batch


def scrambled(source: Source, rng: np.random.Generator) -> Batches:
    """The decoder has lost its place: blocks of 4×4 pixels in random order."""
    for batch in source.ordinary(rng):
        blocks = nn.functional.unfold(batch, 4, stride=4)
        mix = torch.from_numpy(rng.permutation(blocks.shape[2]))
        yield nn.functional.fold(blocks[:, :, mix], batch.shape[2:], 4, stride=4)


def brightening(source: Source, rng: np.random.Generator) -> Batches:
    """The exposure drifts: images become brighter, until for the last sixth they are white."""
    steps = max(1, source.length // source.batch_size)
    for step, batch in enumerate(source.ordinary(rng)):
        yield (batch + 1.2 * step / steps).clamp(max=1)


FAULTS: dict[str, Fault] = {
    "NaN": nan,
    "all black": black,
    "all equal": equal,
    "random noise": noise,
    "one class only": one_class,
    "foreign data set": foreign,
    "huge contrast": huge_contrast,
    "tiny contrast": tiny_contrast,
    "5 % poisoned": poisoned,
    "scrambled blocks": scrambled,
    "brightening to white": brightening,
}


CONTROLS = {"5 % poisoned": no_fault}
"""What a run saw that never saw the fault, where that is not nothing."""


def confident_noise(model: nn.Module, start: Tensor, steps: int = 20) -> Tensor:
    """Climb from noise to images that the model puts into one class, equally many for each, with certainty."""
    images = start.clone().requires_grad_()
    classes = model(images[:1]).shape[1]
    wanted = torch.arange(len(images)) % classes
    for _ in range(steps):
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(model(images), wanted), images)
        images = (images - 0.02 * slope.sign()).detach().clamp(0, 1).requires_grad_()
    return images.detach()
