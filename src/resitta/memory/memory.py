"""A memory of stream samples: images in one preallocated tensor on the model's device, decisions on the host.

Subclasses (`EntroBank`, `CSTU`, `PBRS`) decide which samples enter and leave from labels, ages and entropies,
which reach the host in one copy per batch; the images themselves never leave the device.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resitta.accel.cuda_graphs import CudaGraphs
from resitta.errors import BadImages, BadState
from resitta.training.entropy import labels_and_entropies
from resitta.training.network import Network

Place = Literal["model", "cpu"]
Screen = Callable[[Tensor, Tensor], Tensor]
"""Returns the logits of images, NaN for samples to be ignored."""
Quota = Callable[[int | None, int], int | None]
"""From the slot for a sample, and its index in the batch, to the slot it gets; None discards it."""


class Storage:
    """Turns images into what is kept of them, and back.

    Bytes hold pixels in 256 steps, a quarter of the memory: exact for images that were made from bytes.

    >>> network = Network(torch.nn.Linear(1, 1))
    >>> storage = Storage(network, place="cpu", as_bytes=True)
    >>> kept = storage.keep(torch.tensor([0.0, 0.2, 1.0]))
    >>> kept, storage.bring_back(kept)
    (tensor([  0,  51, 255], dtype=torch.uint8), tensor([0.0000, 0.2000, 1.0000]))
    """

    def __init__(self, network: Network, *, place: Place = "model", as_bytes: bool = False) -> None:
        self.network, self.place, self.as_bytes = network, place, as_bytes

    def keep(self, images: Tensor) -> Tensor:
        """Return images in the form they are kept in."""
        if self.as_bytes:
            images = self.network.pixels(images).mul(255).round_().clamp_(0, 255).to(torch.uint8)
        return images.cpu() if self.place == "cpu" else images

    def bring_back(self, kept: Tensor) -> Tensor:
        """Return kept images as the model takes them."""
        images = kept.to(self.network.device, non_blocking=True)
        return self.network.from_pixels(images.to(self.network.dtype).div_(255)) if self.as_bytes else images


class Memory(nn.Module, ABC):
    """At most `capacity` samples, each with the label and entropy it had when it came in, and its age in samples."""

    images: Tensor

    def __init__(self, capacity: int, *, storage: Storage | None = None) -> None:
        super().__init__()
        self.storage = storage
        self.capacity = capacity
        self.replay = CudaGraphs()
        self.register_buffer("images", torch.empty(0), persistent=False)  # allocated when the shape is known
        self.all_labels = np.zeros(capacity, dtype=np.int64)
        self.all_entropies = np.zeros(capacity, dtype=np.float64)
        self.births = np.zeros(capacity, dtype=np.int64)
        self.screen: Screen | None = None
        self.quota: Quota | None = None
        self.size = 0
        self.clock = 0
        self.classes = 0

    @abstractmethod
    def admit(self, label: int, entropy: float) -> int | None:
        """Return the slot for a new sample (a free one, or one whose sample leaves), or None to discard it."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The predicted labels of the stored samples."""
        return self.all_labels[: self.size]

    @property
    def entropies(self) -> NDArray[np.float64]:
        """The entropies of the stored samples."""
        return self.all_entropies[: self.size]

    @property
    def ages(self) -> NDArray[np.int64]:
        """How many samples the stream has brought since each stored one."""
        return self.clock - self.births[: self.size]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many stored samples each class has."""
        return np.bincount(self.labels, minlength=self.classes)

    @property
    def samples(self) -> Tensor:
        """The stored images."""
        kept = self.images[: self.size]
        return kept if self.storage is None or self.size == 0 else self.storage.bring_back(kept)

    def screened(self, images: Tensor, logits: Tensor) -> Tensor:
        """Return the logits, NaN for samples that a guard keeps out; call it once for a batch."""
        return self.screen(images, logits) if self.screen else logits

    def fill(self, images: Tensor, logits: Tensor, *, every: int) -> Iterator[None]:
        """Add a batch in stream order; yield after every `every`-th sample of the stream, when an update is due."""
        return self.offer(images, self.screened(images, logits), every=every)

    def offer(self, images: Tensor, logits: Tensor, *, every: int, first: int = 0) -> Iterator[None]:
        """The same with logits that are `screened` already; samples before the `first` are counted, but not added."""
        self._make_room(images)
        self.classes = logits.shape[1]
        labels, entropies = labels_and_entropies(logits, self.replay)
        places = np.arange(len(images))
        if self.screen and not np.isfinite(entropies).all():
            places = np.flatnonzero(np.isfinite(entropies))
            images, labels, entropies = images[torch.from_numpy(places)], labels[places], entropies[places]
        if first:
            entropies = np.where(places < first, np.nan, entropies)
        start = 0
        while start < len(images):
            stop = min(len(images), start + every - self.clock % every)
            self.add(images[start:stop], labels[start:stop], entropies[start:stop], places[start:stop])
            start = stop
            if self.clock % every == 0:
                yield

    def due(self, samples: int, *, every: int) -> bool:
        """Whether `fill` would yield for this many further samples."""
        return self.clock % every + samples >= every

    def add(
        self,
        images: Tensor,
        labels: NDArray[np.int64],
        entropies: NDArray[np.float64],
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Offer samples one after the other, then copy the images of those that stay, all at once.

        `places`: the indices of the samples in the batch that a `quota` knows, if some were left out.
        """
        self._make_room(images)
        newest: dict[int, int] = {}
        quota = self.quota
        own = vars(self)  # nn.Module.__setattr__ would take longer than the decisions
        for index, (label, entropy) in enumerate(zip(labels.tolist(), entropies.tolist(), strict=True)):
            own["clock"] = clock = own["clock"] + 1
            slot = self.admit(label, entropy) if math.isfinite(entropy) else None
            if quota is not None and math.isfinite(entropy):
                slot = quota(slot, index if places is None else int(places[index]))
            if slot is not None:
                self.put(slot, label, entropy, clock)
                newest[slot] = index
        if newest:
            slots, indices = torch.tensor((list(newest), list(newest.values())), device="cpu")
            kept = self._kept(images.index_select(0, indices.to(images.device, non_blocking=True)))
            self.images.index_copy_(0, slots.to(kept.device, non_blocking=True), kept)

    def put(self, slot: int, label: int, entropy: float, birth: int) -> None:
        """Store the label, entropy and birth of the sample that takes a slot."""
        self.all_labels[slot], self.all_entropies[slot], self.births[slot] = label, entropy, birth
        if slot == self.size:
            vars(self)["size"] += 1

    def forget_before(self, birth: int) -> None:
        """Remove all samples before the `birth`-th of the stream."""
        kept = np.flatnonzero(self.births[: self.size] >= birth)
        if len(kept):
            self.images[: len(kept)] = self.images[torch.from_numpy(kept).to(self.images.device)]
        for values in (self.all_labels, self.all_entropies, self.births):
            values[: len(kept)] = values[kept]
        self.size = len(kept)
        self.reindex()

    def rescore(self, logits: Tensor) -> None:
        """Replace the labels and entropies of all stored samples by those of fresh predictions."""
        self.all_labels[: self.size], self.all_entropies[: self.size] = labels_and_entropies(logits)
        self.reindex()

    def reindex(self) -> None:
        """Called when stored samples were changed other than by `put`, for memories that keep an index of them."""

    def _make_room(self, images: Tensor) -> None:
        shape, form = (self.capacity, *images.shape[1:]), self._kept(images[:1])
        if self.size == 0 and self.images.shape != shape:
            self.images = zeros(shape, form)
        if (self.images.dtype, self.images.device) != (form.dtype, form.device):
            self.images = self.images.to(form)  # a state loaded before the first image may lie on another device
        if self.images.shape != shape:
            kept, found = tuple(self.images.shape[1:]), tuple(images.shape[1:])
            raise BadImages(f"the memory holds {kept} images, found {found}; resize them, or reset() the adapter")

    def _kept(self, images: Tensor) -> Tensor:
        return images if self.storage is None else self.storage.keep(images)

    def keep(self) -> dict[str, Any]:
        """Return what adding samples changes, except the overwritten images, which are written last."""
        own = vars(self)
        kept = {name: own[name] for name in _COUNTERS}
        for name in _HOST_ARRAYS:
            kept[name] = own[name].copy()
        kept["images"] = own["_buffers"]["images"]
        return kept

    def bring_back(self, kept: dict[str, Any]) -> None:
        """Undo what was added since `keep`."""
        for name, value in kept.items():
            setattr(self, name, value)
        self.reindex()

    def get_extra_state(self) -> dict[str, Any]:
        """Return everything for `state_dict`: the images and the host's side."""
        host = {name: torch.from_numpy(getattr(self, name).copy()) for name in _HOST_ARRAYS}
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return {"images": self.images, **host, **counters}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load everything from a `state_dict`."""
        if state["births"].shape != self.births.shape:
            raise BadState(f"the state holds a memory of {len(state['births'])}, this one has {self.capacity}")
        if state["images"] is not self.images:
            self.images = state["images"].clone()
        for name in _HOST_ARRAYS:
            setattr(self, name, state[name].cpu().numpy().copy())
        for name in _COUNTERS:
            setattr(self, name, int(state[name]))
        self.reindex()


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of another tensor's type, where that is. On a CPU they take memory only once they are written to.

    >>> zeros((2,), torch.ones(1, dtype=torch.bfloat16))
    tensor([0., 0.], dtype=torch.bfloat16)
    """
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    untouched = np.zeros(math.prod(shape) * like.element_size(), np.uint8)
    return torch.from_numpy(untouched).view(like.dtype).view(shape)


_HOST_ARRAYS = ("all_labels", "all_entropies", "births")
_COUNTERS = ("size", "clock", "classes")


def random_choice(slots: NDArray[np.int64], generator: torch.Generator) -> int:
    """Pick one slot at random."""
    return int(slots[int(torch.randint(len(slots), (), generator=generator, device="cpu"))])
