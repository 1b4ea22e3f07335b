"""A copy of everything a learner owns, in memory: what a rollback goes back to."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from resitta.adapter import Adapter


class Snapshot:
    """The learner's state and the random generator's, as they are now. Weights shared with the source are not copied.

    >>> from resitta import adapt
    >>> from resitta.checks import tiny_network
    >>> adapter = adapt(tiny_network(), "tent")
    >>> before, images = Snapshot(adapter), torch.rand(8, 3, 8, 8)
    >>> first = adapter(images)
    >>> before.restore(adapter)
    >>> torch.equal(adapter(images), first)
    True
    """

    def __init__(self, adapter: "Adapter") -> None:
        leaves, self._tree = tree_flatten(dict(adapter.learner.state_dict()))
        self._leaves: list[Any] = copies(leaves)
        self._generator = adapter.generator.get_state()

    def restore(self, adapter: "Adapter") -> None:
        """Make the adapter what it was; the snapshot can be used again."""
        adapter.learner.load_state_dict(tree_unflatten(self._leaves, self._tree))
        adapter.generator.set_state(self._generator)

    def largest(self, device: torch.device) -> Tensor:
        """The largest magnitude among the floats on a device; NaN or Inf if any of them is not finite."""
        floats = [t for t in self._leaves if isinstance(t, Tensor) and t.is_floating_point() and t.numel()]
        norms = torch._foreach_norm([t for t in floats if t.device == device], torch.inf)
        return torch.stack([norm.float() for norm in norms]).amax() if norms else torch.zeros((), device=device)


def copies(values: list[Any]) -> list[Any]:
    """Copy the tensors of a list, all at once, and leave the other values as they are.

    >>> original = torch.ones(2)
    >>> copied = copies([original, "name"])
    >>> copied[0] is original, copied
    (False, [tensor([1., 1.]), 'name'])
    """
    tensors = [value.detach() for value in values if isinstance(value, Tensor)]
    twins = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(twins, tensors)
    following = iter(twins)
    return [next(following) if isinstance(value, Tensor) else value for value in values]


class History:
    """The states an adapter can go back to: the one after its last update, and the last one known to be healthy.

    A state is known to be healthy once `every` further updates have been kept.
    """

    def __init__(self, adapter: "Adapter", every: int) -> None:
        self.every = every
        self._age = 0
        self._last = self._candidate = self._healthy = Snapshot(adapter)

    def keep(self, now: Snapshot) -> None:
        """Remember the state after an update that no guard objected to."""
        self._last = now
        self._age += 1
        if self._age >= self.every:
            self._healthy, self._candidate, self._age = self._candidate, now, 0

    def undo(self, adapter: "Adapter") -> None:
        """Go back to the state after the last update that was kept."""
        self._last.restore(adapter)

    def roll_back(self, adapter: "Adapter") -> None:
        """Go back to the last healthy state."""
        self._healthy.restore(adapter)
        self._last = self._candidate = self._healthy
        self._age = 0
