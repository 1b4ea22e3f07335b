"""CUDA graphs: repeated work on a CUDA device is launched kernel by kernel at first, then recorded and replayed.

A small network spends more time launching kernels than computing. A recorded graph is launched as a whole, but it
reads and writes the memory it was recorded with. Hence the rules for a function that is replayed:

- it works on tensors alone and never waits for the device (no `.item()`, no `if` on a value);
- it changes tensors only in place;
- its result is overwritten by the next replay of any function of the same `CudaGraphs`: all its recordings share one
  memory pool and one static input per index and shape; a result that looks like the first input is written there, so
  that a chain of functions works in one place.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from resitta.runtime.locks import LockRank, new_lock

logger = logging.getLogger(__name__)

R = TypeVar("R")
Call = Callable[..., Tensor]
"""How a function of tensors is called: `call(function, *tensors)`."""
WARM_UP = 2
"""How often work is launched as usual before it is recorded: libraries choose their kernels meanwhile."""
MOST = 16
"""How many recordings one object keeps unless told otherwise; further shapes are launched as usual."""
RECORDING = new_lock(LockRank.MOMENT)
"""Threads record one at a time: all do it in the same streams."""


def traits(value: Tensor) -> tuple[Any, ...]:
    """What a recording depends on besides a tensor's values: shape, dtype, strides and device.

    >>> traits(torch.ones(2)) == traits(torch.zeros(2)), traits(torch.ones(2)) == traits(torch.ones(3))
    (True, False)
    """
    return value.shape, value.dtype, value.stride(), value.device


@dataclass(frozen=True)
class Recording(Generic[R]):
    """A graph, the tensors it reads, and what it leaves its result in."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    result: R

    def replay(self, inputs: tuple[Tensor, ...]) -> R:
        """Run the graph on other inputs of the same shapes."""
        fill(self.inputs, inputs)
        self.graph.replay()
        return self.result


def fill(places: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
    """Copy each value into its static input; a value that is itself a static input is cloned first."""
    moves = [(place, value) for place, value in zip(places, values, strict=True) if value is not place]
    saved = [value.clone() if any(value is place for place in places) else value for _, value in moves]
    for (place, _), value in zip(moves, saved, strict=True):
        place.copy_(value, non_blocking=True)


class Recorder(nn.Module):
    """Records functions of tensors on a CUDA device, and keeps the recordings.

    It is a stateless module, so that moving or loading its parent, which may replace tensors, drops the recordings.
    """

    def __init__(self, *, most: int = MOST, warm_up: int = WARM_UP) -> None:
        super().__init__()
        self.enabled = True
        self.most, self.warm_up = most, warm_up
        self.forget()

    def forget(self) -> None:
        """Drop all recordings."""
        self._calls: Counter[Any] = Counter()
        self._recordings: dict[Any, Any] = {}
        self._places: dict[Any, Tensor] = {}
        self._pool: Any = None

    def _may_record(self, inputs: tuple[Tensor, ...]) -> bool:
        """Whether calls with these inputs are recorded sooner or later."""
        return self.enabled and inputs[0].is_cuda and not torch.cuda.is_current_stream_capturing()

    def _attempt(self, record: Callable[[], R], name: str, device: torch.device) -> R | None:
        """Return what was recorded, None if that failed: then the caller's stream is as it was."""
        stream = torch.cuda.current_stream(device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            with RECORDING:
                return record()
        except Exception as error:  # a model may do anything; what does not record still runs as it is
            reason = str(error).partition("\n")[0]
            logger.info("%s is not recorded as a CUDA graph: %s", name, reason)
            torch.cuda.synchronize()
            torch.cuda.set_stream(stream)  # a recording that cannot be ended stays in its own
            random = torch.cuda.default_generators[device.index]
            random.graphsafe_set_state(random.clone_state())  # and leaves the generator waiting for its end
            self._pool = None  # and may have left something there
            return None

    def _capture(self, function: Callable[..., R], places: tuple[Tensor, ...]) -> Recording[R]:
        """Record a function of static inputs, which are its places."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
            result = function(*places)
        return Recording(graph, places, result)

    def _place(self, index: Any, value: Tensor) -> Tensor:
        """The static input for this index and this shape."""
        key = index, traits(value)
        if key not in self._places:
            self._places[key] = torch.empty_like(value)
        return self._places[key]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def _load_from_state_dict(self, *args: Any) -> None:
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle everything but the recordings."""
        return {**self.__dict__, "_calls": Counter(), "_recordings": {}, "_places": {}, "_pool": None}


class CudaGraphs(Recorder):
    """Calls functions of tensors; from the third time on with the same shapes, on a CUDA device, as recordings.

    Elsewhere, and when recording fails, the function is called as it is. With `most` recordings, those of further
    shapes are launched as usual; `warm_up` is how often that is done with each shape before it is recorded.

    >>> replay = CudaGraphs()
    >>> replay(torch.square, torch.tensor([3.0]))
    tensor([9.])
    """

    if TYPE_CHECKING:

        def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
            """Return `function(*inputs)`."""

    def forward(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return `function(*inputs)`; keep a copy of the result if it has to outlive the next call."""
        if not self._may_record(inputs):
            return function(*inputs)
        key = (function.__name__, torch.is_grad_enabled(), *map(traits, inputs))
        if key not in self._recordings:
            self._calls[key] += 1
            if self._calls[key] != self.warm_up + 1 or len(self._recordings) >= self.most:
                return function(*inputs)
            recording = self._record(function, inputs)
            if recording is None:
                return function(*inputs)
            self._recordings[key] = recording
        result: Tensor = self._recordings[key].replay(inputs)
        return result

    def _record(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Recording[Tensor] | None:
        def in_place(*places: Tensor) -> Tensor:
            result = function(*places)
            alike = traits(result) == traits(places[0]) and not result.requires_grad
            return places[0].copy_(result) if alike else result

        places = tuple(self._place(index, value) for index, value in enumerate(inputs))
        return self._attempt(lambda: self._capture(in_place, places), function.__name__, inputs[0].device)


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The one side stream of a device: libraries keep dozens of megabytes of workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class ParallelStreams:
    """Work inside `with streams(x)` runs in parallel with the work that follows, until `join`.

    Only inside recorded graphs: kernels launched one by one seldom fill even one stream, and their memory would have to
    be protected from early reuse.

    >>> streams = ParallelStreams()
    >>> with streams(torch.ones(1)):
    ...     two = 1 + torch.ones(1)
    >>> streams.join()
    >>> two
    tensor([2.])
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None

    @contextmanager
    def __call__(self, x: Tensor) -> Iterator[None]:
        """Begin after all that was done so far, on the device of x."""
        stream = side_stream(x.device) if x.is_cuda else None  # made before the first recording, not in it
        self.stream = stream if stream is not None and torch.cuda.is_current_stream_capturing() else None
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let what follows wait for the side stream."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            self.stream = None
