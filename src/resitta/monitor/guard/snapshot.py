"""In-memory copies of everything a learner owns, for rollbacks."""

import copy
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from resitta.method import AdapterLike
from resitta.runtime.rollback import copies


class Snapshot:
    """A copy of the learner's and the random generator's state. Weights shared with the source are not copied.

    >>> from resitta import adapt
    >>> from resitta.conformance import tiny_network
    >>> adapter = adapt(tiny_network(), "tent")
    >>> before, images = Snapshot(adapter), torch.rand(8, 3, 8, 8)
    >>> first = adapter(images)
    >>> before.restore(adapter)
    >>> torch.equal(adapter(images), first)
    True
    """

    def __init__(self, adapter: AdapterLike) -> None:
        state = dict(adapter.learner.state_dict())
        tensors = list(tensors_in(state))
        self._tensors = copies(tensors)
        twins = {id(tensor): twin for tensor, twin in zip(tensors, self._tensors, strict=True)}
        self._state = copy.deepcopy(state, twins)  # the tensors are copied already, all at once
        self._generator = adapter.generator.get_state()
        self.samples = adapter.samples

    def restore(self, adapter: AdapterLike) -> None:
        """Restore the adapter; the snapshot can be used again."""
        adapter.learner.load_state_dict(self._state)
        adapter.generator.set_state(self._generator)

    def state(self) -> dict[str, Any]:
        """Return it for `state_dict`; its tensors must not be written to."""
        return {"learner": self._state, "generator": self._generator, "samples": self.samples}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Undo `state`."""
        snapshot = cls.__new__(cls)
        snapshot._state, snapshot._generator = dict(state["learner"]), state["generator"].cpu()
        snapshot._tensors = list(tensors_in(snapshot._state))
        snapshot.samples = int(state["samples"])
        return snapshot

    def largest(self, device: torch.device) -> Tensor:
        """The largest magnitude among the floats on a device; NaN or Inf if any of them is not finite."""
        floats = [t for t in self._tensors if t.is_floating_point() and t.numel() and t.device == device]
        norms = torch._foreach_norm(floats, torch.inf) if floats else ()
        return torch.stack([norm.float() for norm in norms]).amax() if norms else torch.zeros((), device=device)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


class History:
    """The states an adapter can return to: the one after its last update, and the last one known to be healthy.

    A state is known to be healthy when updates have been kept for `trust_after` further samples. `healthy` is the one
    to return to if nothing is known about the adapter's present state.
    """

    def __init__(self, adapter: AdapterLike, trust_after: int, healthy: Snapshot | None = None) -> None:
        self.trust_after = trust_after
        self._last = self._candidate = Snapshot(adapter)
        self.healthy = healthy or self._last

    def keep(self, now: Snapshot) -> None:
        """Remember the state after a healthy update."""
        self._last = now
        if now.samples - self._candidate.samples >= self.trust_after:
            self.healthy, self._candidate = self._candidate, now

    def undo(self, adapter: AdapterLike) -> None:
        """Return to the state after the last update that was kept."""
        self._last.restore(adapter)

    def roll_back(self, adapter: AdapterLike) -> None:
        """Return to the last healthy state."""
        self.healthy.restore(adapter)
        self._last = self._candidate = self.healthy

    @property
    def snapshots(self) -> list[Snapshot]:
        """The distinct ones among the last, the candidate and the healthy one."""
        return list(dict.fromkeys((self._last, self._candidate, self.healthy)))

    def state(self) -> dict[str, Any]:
        """Return the distinct snapshots for `state_dict`, and the index of each role."""
        different = self.snapshots
        parts = [different.index(snapshot) for snapshot in (self._last, self._candidate, self.healthy)]
        return {"snapshots": [snapshot.state() for snapshot in different], "parts": parts}

    @classmethod
    def of(cls, state: dict[str, Any], trust_after: int) -> Self:
        """Undo `state`."""
        history = cls.__new__(cls)
        history.trust_after = trust_after
        different = [Snapshot.of(snapshot) for snapshot in state["snapshots"]]
        history._last, history._candidate, history.healthy = (different[part] for part in state["parts"])
        return history
