"""A shelf between two threads: one puts all tensors there, the other takes all of them, never a mixture of two puts."""

import torch
from torch import Tensor

from resitta.runtime.locks import LockRank, new_lock


class WeightHandoff:
    """Copies tensors to others of the same shapes, in place, by way of a third set.

    `put` copies `source` to the shelf and returns when that is done on the device. `take` copies the shelf to
    `target` if something new lies there; it never waits for a `put`, and does not wait for the device.

    >>> source, target = [torch.tensor(1.0), torch.tensor(2.0)], [torch.tensor(0.0), torch.tensor(0.0)]
    >>> shelf = WeightHandoff(source, target)
    >>> shelf.put()
    >>> target
    [tensor(0.), tensor(0.)]
    >>> shelf.take()
    True
    >>> target, shelf.take()
    ([tensor(1.), tensor(2.)], False)
    """

    def __init__(self, source: list[Tensor], target: list[Tensor]) -> None:
        self.source, self.target = source, target
        self._kept = [tensor.detach().clone() for tensor in target]
        self._lock = new_lock(LockRank.MOMENT)
        self._fresh = False
        self._taken: torch.cuda.Event | None = None

    @torch.no_grad()
    def put(self) -> None:
        """Copy the source to the shelf; one thread at a time."""
        with self._lock:
            self._fresh = False
            taken = self._taken
        if taken is not None:
            taken.synchronize()
        torch._foreach_copy_(self._kept, self.source)
        if (event := mark(self._kept[0])) is not None:
            event.synchronize()
        with self._lock:
            self._fresh = True

    @torch.no_grad()
    def take(self) -> bool:
        """Copy the shelf to the target, if it holds what was not taken yet; return whether it did."""
        with self._lock:
            if self._fresh:
                torch._foreach_copy_(self.target, self._kept)
                self._taken = mark(self.target[0])
                self._fresh = False
                return True
        return False


def mark(tensor: Tensor) -> torch.cuda.Event | None:
    """An event after all work given to a CUDA tensor's device so far in the current stream; elsewhere work is done.

    >>> mark(torch.zeros(1)) is None
    True
    """
    if not tensor.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return event
