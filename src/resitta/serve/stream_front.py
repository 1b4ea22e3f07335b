"""Predicts batches of many streams with the weights that their learner has published, beside the learner's thread."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.fleets.one_pass import MixedSamples, OnePass, fits_one_pass
from resitta.runtime.locks import LockRank, new_lock
from resitta.training.network import Network

SOURCE = 0
"""The row of streams that have learned nothing yet."""


class StreamFront:
    """One row of scales and shifts for each stream. One thread puts rows, another one predicts; neither waits.

    A stream without a row is predicted by the source, as it begins there. At most `most` rows are kept; those used
    least recently go, and `lacks` tells which streams have to be put again.

    >>> import resitta
    >>> from resitta.conformance import tiny_network
    >>> template = resitta.adapt(tiny_network(), "resitta")
    >>> front = StreamFront.of(template, size=8, most=100)
    >>> logits, version = front.predict(torch.rand(2, 3, 8, 8), ["gate", "yard"])
    >>> logits.shape, version, front.lacks("gate")
    (torch.Size([2, 5]), 0, True)
    """

    def __init__(self, source: Network, like: Network, *, most: int) -> None:
        self.most = most
        with torch.inference_mode(False):
            self.one_pass = OnePass(source, like, cuda_graphs=False)  # another thread's work must not be recorded
            self.one_pass.put(SOURCE, like)
        self._places: OrderedDict[str, int] = OrderedDict()
        self._free = list(range(1, most + 1))[::-1]
        self._version = 0
        self._new: dict[str, Tensor | None] = {}
        self._newest = 0
        self._lock = new_lock(LockRank.MOMENT)

    @classmethod
    def of(cls, template: Adapter, *, size: int, most: int) -> "Self | None":
        """One for the streams of a fleet; None if their predictions need their learners or their label priors."""
        like = template.learner.exportable_network()
        if like is None or not fits_one_pass(template.learner) or template.prior is not None:
            return None
        front = cls(template.source, like, most=most)
        try:
            front.predict(
                torch.full((2, 3, size, size), 0.5).to(template.source.device, template.source.dtype), ["", ""]
            )
        except MixedSamples:  # the model reshapes a batch in front of a BatchNorm layer
            return None
        return front

    @property
    def channels_last(self) -> bool:
        """Whether predictions use the layout that convolutions are fastest in."""
        return self.one_pass.network.channels_last

    # For the thread that learns.

    def put(self, name: str, network: Network | None, version: int) -> None:
        """Publish what a stream predicts with from now on; None: it begins anew."""
        row = None if network is None else self.one_pass.row(network)
        with self._lock:
            self._new[name], self._newest = row, version

    # For the thread that predicts.

    def lacks(self, name: str) -> bool:
        """Whether a stream would be predicted by the source."""
        with self._lock:
            return self._new[name] is None if name in self._new else name not in self._places

    @torch.inference_mode()
    def predict(self, images: Tensor, streams: Sequence[str]) -> tuple[Tensor, int]:
        """Return the logits of images, each of its stream, and the version of what predicted them."""
        for name in dict.fromkeys(streams):
            if name in self._places:
                self._places.move_to_end(name)
        self._take()
        return self.one_pass.predict(images, [self._places.get(name, SOURCE) for name in streams]), self._version

    def _take(self) -> None:
        """Bring the table to the newest version."""
        with self._lock:
            new, self._new, self._version = self._new, {}, self._newest
        for name, row in new.items():
            place = self._places.pop(name, None)
            if row is not None:
                self._places[name] = self._any_place() if place is None else place
                self.one_pass.put_row(self._places[name], row)
            elif place is not None:
                self._free.append(place)

    def _any_place(self) -> int:
        return self._free.pop() if self._free else self._places.popitem(last=False)[1]
