"""Comparisons that have begun: images that wait for the source, and results on their way from a device."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resitta.monitor.shadow.ids import Ids
from resitta.training.entropy import entropy
from resitta.training.network import Network

BATCH = 32
"""How many images wait before the source predicts them together: small batches cost more for each image."""


@dataclass(frozen=True)
class Waiting:
    """Copies of images and of their logits, that the source has yet to predict."""

    ids: Ids
    images: Tensor
    logits: Tensor


class Pending:
    """Lets the source predict chosen images in batches, and never waits for a device unless asked.

    >>> from resitta.conformance import tiny_network
    >>> source, pending, images = Network(tiny_network()), Pending(), torch.rand(33, 3, 8, 8)
    >>> pending.keep(source, np.arange(33), images, torch.zeros(33, 5))
    >>> [len(ids) for ids, _ in pending.arrived(wait=False)]
    [32]
    >>> pending.predict(source)
    >>> [ids.tolist() for ids, _ in pending.arrived(wait=True)]
    [[32]]
    """

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        self._arriving = deque[tuple[Ids, Tensor, torch.cuda.Event | None]]()

    def keep(self, source: Network, ids: Ids, images: Tensor, logits: Tensor) -> None:
        """Add images, which nobody else writes to; predict those that wait once they are enough for a batch."""
        if self._waiting and self._waiting[0].images.shape[1:] != images.shape[1:]:
            self.predict(source)
        self._waiting.append(Waiting(ids, images, logits))
        count = sum(len(waiting.ids) for waiting in self._waiting)
        if count >= BATCH:
            self.predict(source, count - count % BATCH)  # few sizes, for CUDA graphs

    def predict(self, source: Network, count: int | None = None) -> None:
        """Let the source predict the first of the images that wait, or all; if it fails, they are dropped."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        ids = np.concatenate([each.ids for each in waiting])
        images = torch.cat([each.images.to(source.device, source.dtype) for each in waiting])
        logits = torch.cat([each.logits.to(source.device) for each in waiting])
        count = len(ids) if count is None else count
        with torch.inference_mode(False):
            self.note(ids[:count], logits[:count], source.predict(images[:count]))
        if count < len(ids):
            self._waiting = [Waiting(ids[count:], images[count:], logits[count:])]

    def note(self, ids: Ids, adapted: Tensor, source: Tensor) -> None:
        """Compare logits; from a device the result is copied without waiting for it."""
        found, event = signs(adapted, source), None
        if found.is_cuda:
            found = torch.empty(found.shape, dtype=found.dtype, pin_memory=True).copy_(found, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(source.device))
        self._arriving.append((ids, found, event))

    def arrived(self, *, wait: bool) -> Iterator[tuple[Ids, NDArray[Any]]]:
        """Return and forget the results that have arrived, in order."""
        while self._arriving:
            ids, found, event = self._arriving[0]
            if event is not None and not wait and not event.query():  # type: ignore[no-untyped-call]
                return
            if event is not None:
                event.synchronize()
            self._arriving.popleft()
            yield ids, found.numpy()


def rows(values: Tensor, places: NDArray[np.intp]) -> Tensor:
    """Copy some rows. Row by row, since a list of indices would have to be copied to the device first."""
    return values.detach().clone() if len(places) == len(values) else torch.stack([values[place] for place in places])


@torch.no_grad()
def signs(adapted: Tensor, source: Tensor) -> Tensor:
    """The classes, confidences and entropies of both, as the columns of a ledger.

    >>> signs(torch.tensor([[0.0, 9.0]]), torch.tensor([[0.0, 0.0]]))[0, :2]
    tensor([1., 0.])
    """
    both = adapted.detach().float(), source.float()
    probabilities = [logits.softmax(dim=1).max(dim=1) for logits in both]
    columns = [found.indices.float() for found in probabilities] + [found.values for found in probabilities]
    return torch.stack([*columns, *map(entropy, both)], dim=1)
