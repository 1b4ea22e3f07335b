"""Rollback: a module's state is saved before a change and restored if the change fails."""

import copy
import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from resitta.memory.memory import Memory
from resitta.training.sharing import borrowed

Undo = Callable[[], None]
"""Restores what was kept, once."""


class Rollback:
    """Saves what a module owns: parameters, buffers, optimizer state, memories, and what `get_extra_state` returns.

    Tensors are restored in place, since optimizers, recorded CUDA graphs and networks of other threads hold them. They
    are copied in one operation, into buffers that are reused from one change to the next.

    >>> layer = nn.Linear(1, 1)
    >>> before = layer.weight.item()
    >>> try:
    ...     with Rollback(layer).unless_complete():
    ...         _ = layer.weight.data.add_(1)
    ...         raise MemoryError
    ... except MemoryError:
    ...     layer.weight.item() == before
    True
    """

    def __init__(self, module: nn.Module, generator: torch.Generator | None = None) -> None:
        self.module, self.generator = module, generator
        parts = list(module.modules())
        self._optimizers = [optimizer for part in parts for optimizer in _optimizers(part)]
        speaking = [part for part in parts if _has_extra_state(part)]
        self._memories = [part for part in speaking if isinstance(part, Memory)]
        self._others = [part for part in speaking if not isinstance(part, Memory)]
        self._tensors: Tensors | None = None

    @contextmanager
    def unless_complete(self, *, tensors: bool = True) -> Iterator[None]:
        """Restore everything if the block raises; for `tensors` see `keep`."""
        undo = self.keep(tensors=tensors)
        try:
            yield
        except BaseException:
            undo()
            raise

    def keep(self, *, tensors: bool = True) -> Undo:
        """Save everything, and return the function that restores it.

        Without `tensors`, save only state on the host. That suffices for a step that changes nothing but memories, as
        its last operation on a device, and what `get_extra_state` returns copies of.
        """
        draws = None if self.generator is None else self.generator.get_state()
        undo = self._keep_all() if tensors else self._keep_host_side()

        def undo_all() -> None:
            undo()
            if self.generator is not None and draws is not None:
                self.generator.set_state(draws)

        return undo_all

    def free(self) -> None:
        """Give back the buffers that hold copies between changes, where memory is worth more than a little time."""
        self._tensors = None

    def _keep_host_side(self) -> Undo:
        memories = [memory.keep() for memory in self._memories]
        others = [part.get_extra_state() for part in self._others]

        def undo() -> None:
            for memory, kept in zip(self._memories, memories, strict=True):
                memory.bring_back(kept)
            for part, state in zip(self._others, others, strict=True):
                part.set_extra_state(state)

        return undo

    def _keep_all(self) -> Undo:
        if self._tensors is None or not self._tensors.current():
            self._tensors = Tensors(self.module, self._optimizers)
        tensors, speaking = self._tensors, [*self._memories, *self._others]
        tensors.keep()
        states = [_copied(part.get_extra_state(), tensors.ids) for part in speaking]

        def undo() -> None:
            tensors.restore()
            for part, state in zip(speaking, states, strict=True):
                part.set_extra_state(state)

        return undo


class Tensors:
    """Every tensor that a module and its optimizers own, where it is held, and a copy of it."""

    def __init__(self, module: nn.Module, optimizers: list[Optimizer]) -> None:
        self._states = [(optimizer, optimizer.state) for optimizer in optimizers]
        self._holders = list(map(Holder, _places(module, optimizers)))
        shared = {id(part._buffers[name]) for part in module.modules() for name in borrowed(part)}
        held = {id(value): value for holder in self._holders for value in holder.values if isinstance(value, Tensor)}
        self._originals = [tensor for key, tensor in held.items() if key not in shared]
        self.ids = frozenset(map(id, self._originals))
        self._nature = _nature(self._originals)
        self._copies: list[Tensor] = []
        self._alike: list[list[int]] = _alike(self._originals)

    def current(self) -> bool:
        """Whether the tensors are still those that are held, of the same types and on the same devices."""
        held = all(optimizer.state is state for optimizer, state in self._states)
        return held and all(holder.current() for holder in self._holders) and self._nature == _nature(self._originals)

    def keep(self) -> None:
        """Copy the values."""
        if self._copies:
            self._copy(self._originals, self._copies)
        else:
            self._copies = copies(self._originals)

    def restore(self) -> None:
        """Put the tensors back into their holders, with the values they had."""
        for holder in self._holders:
            holder.restore()
        for optimizer, _ in self._states:
            optimizer.zero_grad()
        self._copy(self._copies, self._originals)

    @torch.no_grad()
    def _copy(self, values: list[Tensor], places: list[Tensor]) -> None:
        for group in self._alike:
            torch._foreach_copy_([places[index] for index in group], [values[index] for index in group])


class Holder:
    """A dict and its contents: the parameters or buffers of a module, or an optimizer's state of a parameter."""

    __slots__ = ("_keys", "place", "values")

    def __init__(self, place: dict[Any, Any]) -> None:
        self.place, self._keys, self.values = place, tuple(place), tuple(place.values())

    def current(self) -> bool:
        """Whether it holds the very same objects."""
        return len(self.place) == len(self.values) and all(map(operator.is_, self.place.values(), self.values))

    def restore(self) -> None:
        """Put the original objects back."""
        if not self.current():
            self.place.clear()
            self.place.update(zip(self._keys, self.values, strict=True))


def _places(module: nn.Module, optimizers: list[Optimizer]) -> Iterator[dict[Any, Any]]:
    """The dicts that hold tensors."""
    for part in module.modules():
        yield from filter(None, (part._parameters, part._buffers))
    for optimizer in optimizers:
        yield optimizer.state
        yield from optimizer.state.values()
        yield from optimizer.param_groups


def _optimizers(module: nn.Module) -> list[Optimizer]:
    return [value for value in vars(module).values() if isinstance(value, Optimizer)]


def _has_extra_state(module: nn.Module) -> bool:
    """Whether a module has extra state besides that of its optimizer, which is saved as tensors."""
    if type(module).get_extra_state is nn.Module.get_extra_state:
        return False
    state = module.get_extra_state() if _optimizers(module) else None
    return not isinstance(state, dict) or not state.keys() <= {"state", "param_groups"}


def _nature(tensors: list[Tensor]) -> list[Any]:
    return [(tensor.dtype, tensor.device) for tensor in tensors]


def _alike(tensors: list[Tensor]) -> list[list[int]]:
    """The indices of tensors of one device and type, which can be copied at once."""
    groups: dict[Any, list[int]] = {}
    for index, nature in enumerate(_nature(tensors)):
        groups.setdefault(nature, []).append(index)
    return list(groups.values())


def _copied(state: Any, kept: Collection[int]) -> Any:
    """Copy a state but for the tensors that are kept elsewhere; `copy.deepcopy` takes ten times as long for tensors."""
    if isinstance(state, Tensor):
        return state if id(state) in kept else state.clone()
    if type(state) is dict:
        return {key: _copied(value, kept) for key, value in state.items()}
    if type(state) is list:
        return [_copied(value, kept) for value in state]
    return copy.deepcopy(state)


def copies(tensors: list[Tensor]) -> list[Tensor]:
    """Copy tensors, all of one device and type at once."""
    twins = [torch.empty_like(tensor) for tensor in tensors]
    with torch.no_grad():
        for group in _alike(tensors):
            torch._foreach_copy_([twins[index] for index in group], [tensors[index] for index in group])
    return twins
