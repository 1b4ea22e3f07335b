"""Atomic publication of weights through a double buffer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from resitta.method import AdapterLike
from resitta.norm.bn_layers import bn_layers
from resitta.runtime.locks import LockRank, new_lock
from resitta.training.network import Network, Trained


class WeightHandoff:
    """Copies tensors from one thread to another, in place, through a buffer.

    `put` copies its source to the buffer and returns when that is done on the device. `take` copies the buffer to
    `target` if it is newer; it waits neither for a `put` nor for the device.

    >>> target = [torch.tensor(0.0), torch.tensor(0.0)]
    >>> weights = WeightHandoff(target)
    >>> weights.put([torch.tensor(1.0), torch.tensor(2.0)], version=1)
    >>> target, weights.version
    ([tensor(0.), tensor(0.)], 0)
    >>> weights.take()
    True
    >>> target, weights.version, weights.take()
    ([tensor(1.), tensor(2.)], 1, False)
    """

    def __init__(self, target: list[Tensor]) -> None:
        self.target = target
        self.version = 0
        """The version of the target."""
        self.newest = 0
        """The version that was put last."""
        self._buffer = [tensor.detach().clone() for tensor in target]
        self._putting = new_lock(LockRank.QUEUE)
        self._lock = new_lock(LockRank.MOMENT)
        self._fresh = False
        self._taken: torch.cuda.Event | None = None

    @torch.no_grad()
    def put(self, source: list[Tensor], version: int) -> None:
        """Publish a version."""
        with self._putting:
            with self._lock:
                self._fresh = False
                taken = self._taken
            if taken is not None:
                taken.synchronize()
            torch._foreach_copy_(self._buffer, source)
            if (event := mark(self._buffer[0])) is not None:
                event.synchronize()
            with self._lock:
                self._fresh, self.newest = True, version

    @torch.no_grad()
    def take(self) -> bool:
        """Bring the target to the newest version; return whether it was an older one."""
        with self._lock:
            if self._fresh:
                torch._foreach_copy_(self.target, self._buffer)
                self._taken = mark(self.target[0])
                self._fresh, self.version = False, self.newest
                return True
        return False

    def read(self) -> tuple[int, list[Tensor]]:
        """Return the newest version and copies of its tensors, once a `put` under way is complete."""
        with self._putting:
            return self.newest, [tensor.clone() for tensor in self._buffer]


class PublishedNetwork:
    """A network that predicts with the weights of a learner in another thread or process. For one thread at a time."""

    def __init__(self, source: Network, trains: Trained, *, channels_last: bool = False) -> None:
        with torch.inference_mode(False):
            self.network = source.fork(trains, channels_last=channels_last).requires_grad_(False)
            self.weights = WeightHandoff(learned(self.network))

    @classmethod
    def of(cls, adapter: AdapterLike) -> "PublishedNetwork | None":
        """A network for the weights that `weights_of` returns; None if the method's predictions need its learner."""
        if adapter.learner.exportable_network() is None:
            return None
        return cls(adapter.source, adapter.method.trains if adapter.learner.learns_from_predictions else "all")

    @torch.inference_mode()
    def predict(self, images: Tensor) -> tuple[Tensor, int]:
        """Return the logits and the version that they come from: the newest one that is complete."""
        self.weights.take()
        return self.network(images), self.weights.version


def weights_of(adapter: AdapterLike) -> list[Tensor]:
    """The tensors to publish for an adapter that has a `PublishedNetwork`."""
    teacher = adapter.learner.exportable_network()
    if teacher is None or not adapter.learner.learns_from_predictions:
        teacher = adapter.source.around(adapter.export())  # with plain layers
    return learned(teacher)


def learned(network: Network) -> list[Tensor]:
    """All tensors that learning changes in a network, in an order that does not depend on how layers are wrapped.

    >>> from torch import nn
    >>> fork = Network(nn.BatchNorm2d(3)).fork("affine")
    >>> [tensor.tolist() for tensor in learned(fork)]  # weight, bias, mean, variance
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    statistics = [tensor for _, layer in bn_layers(network.model) for tensor in (layer.running_mean, layer.running_var)]
    return [*network.parameters(), *(tensor for tensor in statistics if tensor is not None)]


def changes(before: Sequence[Tensor], after: Sequence[Tensor]) -> dict[int, Tensor]:
    """The tensors that differ, by index: the update for another process.

    >>> changes([torch.zeros(1), torch.zeros(1)], [torch.zeros(1), torch.ones(1)])
    {1: tensor([1.])}
    """
    pairs = enumerate(zip(before, after, strict=True))
    return {place: new.cpu() for place, (old, new) in pairs if not torch.equal(old, new)}


def mark(tensor: Tensor) -> torch.cuda.Event | None:
    """Record an event in the current stream of a CUDA tensor's device; None for other devices."""
    if not tensor.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return event
