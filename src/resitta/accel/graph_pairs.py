"""Pairs of CUDA graphs: a function with gradients, and what uses its gradients, with other work between the two.

A step is recorded whole only if the host knows every shape in advance. Where it has to look at results first, this
records what comes before and what comes after the look. The rules of `CudaGraphs` hold for both functions.

Like `torch.cuda.make_graphed_callables`, it records a forward pass and its backward pass one right after the other, so
that the second graph reads what autograd saved in the first. That function would also run both several times on its own
before, which moves statistics, and would not let other threads use the device meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resitta.accel.cuda_graphs import Recorder, Recording, traits

First = Callable[..., tuple[Tensor, ...]]
"""The first half: tensors to results; gradients flow through the first of these."""
Second = Callable[[Tensor, Tensor], Tensor]
"""The second half, of the first result, with its autograd graph, and of a tensor that was made in between."""
Finish = Callable[[Tensor], Tensor]
"""The second half, of the tensor that was made in between."""


@dataclass(frozen=True)
class Pair:
    """The recordings of both halves."""

    first: Recording[tuple[Tensor, ...]]
    second: Recording[Tensor]

    def finish(self, between: Tensor) -> Tensor:
        """Replay the second half."""
        return self.second.replay((between,))


class GraphPairs(Recorder):
    """Calls two halves of a step; from the third time on with the same shapes, on a CUDA device, as recordings.

    A pair must be finished before another one begins, since their memory is shared; an unfinished one may be given up.
    In between nothing may change what the first half left for the backward pass, such as the parameters. What comes
    between always has the same shape for the same shapes of inputs.

    >>> pairs, weight = GraphPairs(), torch.tensor(3.0, requires_grad=True)
    >>> (y,), finish = pairs(lambda x: (x * weight,), lambda y, g: torch.autograd.grad(y, weight, g)[0], torch.ones(2))
    >>> y, finish(torch.tensor([1.0, 4.0]))
    (tensor([3., 3.]), tensor(5.))
    """

    if TYPE_CHECKING:

        def __call__(self, first: First, second: Second, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Finish]:
            """Return the results of `first(*inputs)`, and the function that calls `second`."""

    def forward(self, first: First, second: Second, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Finish]:
        """Return what `first` returns, without autograd graph, and what to call with the tensor made in between.

        Results are overwritten by the next call.
        """
        key = first.__name__, torch.is_grad_enabled(), *map(traits, inputs)
        recorded = self._may_record(inputs)
        if recorded and self._calls[key] == self.warm_up and len(self._recordings) < self.most:
            self._calls[key] += 1  # one attempt
            pair = self._record(first, second, inputs, self._places[key])
            if pair is not None:
                self._recordings[key] = pair
        if recorded and key in self._recordings:
            pair = self._recordings[key]
            return pair.first.replay(inputs), pair.finish
        results = first(*inputs)
        held = [results[0]]  # its autograd graph ends with the step: while it lives, the next one cannot be recorded
        finish = partial(self._finish, key if recorded else None, second, held)
        return tuple(result.detach() for result in results), finish

    def _finish(self, key: Any, second: Second, held: list[Tensor], between: Tensor) -> Tensor:
        """Call the second half, and note that this was one more step with these shapes."""
        answer = second(held.pop(), between)
        if key is None:
            return answer
        self._places.setdefault(key, torch.empty_like(between))
        if self._calls[key] < self.warm_up:
            self._calls[key] += 1
        return answer

    def _record(self, first: First, second: Second, inputs: tuple[Tensor, ...], between: Tensor) -> Pair | None:
        """Record both halves, before anything changes what the first one leaves for the second."""
        places = tuple(self._place(index, value) for index, value in enumerate(inputs))

        def both() -> Pair:
            begun = self._capture(first, places)
            ended = self._capture(lambda between: second(begun.result[0], between), (between,))
            results = tuple(result.detach() for result in begun.result)  # alive, so that nothing else is put there
            return Pair(Recording(begun.graph, places, results), ended)

        return self._attempt(both, first.__name__, inputs[0].device)
