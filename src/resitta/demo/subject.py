"""What a demo shows: images, the network that was trained on their kind, and what its page says about them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from resitta.bench.loop import Progress
from resitta.bench.runner import BenchSpec

Bar = Callable[[str], Progress]
"""Makes a progress bar of a title."""


class Open(Protocol):
    """How a subject becomes a bench: corrupted images and records go to `out`; a network is trained if it must be."""

    def __call__(self, out: Path, *, samples: int, seed: int, retrain: bool, bar: Bar) -> BenchSpec:
        """Return the bench; it is the same for the same samples and seed."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """`samples` and `fast_samples` are images per corruption; `few` warns of fewer than `samples`."""

    title: str
    intro: str
    few: str
    classes: tuple[str, ...]
    methods: tuple[str, ...]
    samples: int
    fast_samples: int
    open: Open
