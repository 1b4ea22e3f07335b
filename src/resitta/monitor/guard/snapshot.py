"""A copy of everything a learner owns, in memory: what a rollback goes back to."""

import copy
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from resitta.method import AdapterLike
from resitta.runtime.rollback import copies


class Snapshot:
    """The learner's state and the random generator's, as they are now. Weights shared with the source are not copied.

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
        """Make the adapter what it was; the snapshot can be used again."""
        adapter.learner.load_state_dict(self._state)
        adapter.generator.set_state(self._generator)

    def state(self) -> dict[str, Any]:
        """All of it as nested dicts, for `state_dict`; nobody may write into its tensors."""
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
    """All tensors in nested dicts and lists.

    >>> [tensor.item() for tensor in tensors_in({"a": torch.tensor(1), "b": [2, {"c": torch.tensor(3)}]})]
    [1, 3]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


class History:
    """The states an adapter can go back to: the one after its last update, and the last one known to be healthy.

    A state is known to be healthy when updates have been kept for `trust_after` further samples. Where the adapter
    begins with a state of which nothing is known, `healthy` is another one to go back to.
    """

    def __init__(self, adapter: AdapterLike, trust_after: int, healthy: Snapshot | None = None) -> None:
        self.trust_after = trust_after
        self._last = self._candidate = Snapshot(adapter)
        self._healthy = healthy or self._last

    @property
    def healthy(self) -> Snapshot:
        """What a collapse goes back to."""
        return self._healthy

    def keep(self, now: Snapshot) -> None:
        """Remember the state after an update that no guard objected to."""
        self._last = now
        if now.samples - self._candidate.samples >= self.trust_after:
            self._healthy, self._candidate = self._candidate, now

    def undo(self, adapter: AdapterLike) -> None:
        """Go back to the state after the last update that was kept."""
        self._last.restore(adapter)

    def roll_back(self, adapter: AdapterLike) -> None:
        """Go back to the last healthy state."""
        self._healthy.restore(adapter)
        self._last = self._candidate = self._healthy

    @property
    def snapshots(self) -> list[Snapshot]:
        """The different ones among the last, the candidate and the healthy one."""
        return list(dict.fromkeys((self._last, self._candidate, self._healthy)))

    def state(self) -> dict[str, Any]:
        """All snapshots for `state_dict`, each once, and which of them plays which part."""
        different = self.snapshots
        parts = [different.index(snapshot) for snapshot in (self._last, self._candidate, self._healthy)]
        return {"snapshots": [snapshot.state() for snapshot in different], "parts": parts}

    @classmethod
    def of(cls, state: dict[str, Any], trust_after: int) -> Self:
        """Undo `state`."""
        history = cls.__new__(cls)
        history.trust_after = trust_after
        different = [Snapshot.of(snapshot) for snapshot in state["snapshots"]]
        history._last, history._candidate, history._healthy = (different[part] for part in state["parts"])
        return history
