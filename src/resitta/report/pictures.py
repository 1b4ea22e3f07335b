"""The images of a page: pieces of the stream, and what the bank holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from resitta.memory.memory import Memory
from resitta.report.png import Pixels, to_pixels


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
    """Everything in a memory, sorted by label and then by age; `memory` is `adapter.learner.memory()`."""
    if memory is None:
        return ()
    names = [classes[label] if label < len(classes) else str(label) for label in memory.labels]
    rows = zip(to_pixels(memory.samples), names, memory.ages.tolist(), memory.entropies.tolist(), strict=True)
    return tuple(sorted((BankItem(*row) for row in rows), key=lambda item: (item.label, item.age)))
