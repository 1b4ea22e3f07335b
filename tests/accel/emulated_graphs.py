"""CUDA graphs on a CPU: recording leaves no trace, and a replay overwrites the results of the recording."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta.accel.cuda_graphs import Recorder, Recording
from resitta.training.optimizer import Optimizer


class EmulatedGraph:
    """Stands in for `torch.cuda.CUDAGraph`: replays by calling the function again."""

    def __init__(self, function: Callable[..., Any], places: tuple[Tensor, ...]) -> None:
        self.function, self.places = function, places
        result = function(*places)
        self.recording: Recording[Any] = Recording(self, places, result)  # type: ignore[arg-type]
        self.homes = [value.detach() for value in _several(result)]

    def replay(self) -> None:
        result = self.function(*self.places)
        for home, value in zip(self.homes, _several(result), strict=True):
            home.copy_(value.detach())
        object.__setattr__(self.recording, "result", result)  # a second half uses the autograd graph of this run


def _several(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


@contextmanager
def emulated_graphs(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> Iterator[None]:
    """Let all recorders record on a CPU; what changes in a module during a recording is undone."""

    def attempt(self: Recorder, record: Callable[[], Any], name: str, device: torch.device) -> Any:
        before = [(tensor, tensor.detach().clone()) for tensor in _tensors(module)]
        recorded = record()
        with torch.no_grad():
            for tensor, value in before:
                if not torch.equal(tensor, value):  # even the same values would be a change to autograd
                    tensor.copy_(value)
        return recorded

    def capture(self: Recorder, function: Callable[..., Any], places: tuple[Tensor, ...]) -> Recording[Any]:
        return EmulatedGraph(function, tuple(place.zero_() for place in places)).recording

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_may_record", lambda self, inputs: self.enabled)
        patch.setattr(Recorder, "_attempt", attempt)
        patch.setattr(Recorder, "_capture", capture)
        yield


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers, and what optimizers keep."""
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        if isinstance(part, Optimizer) and part.inner is not None:
            yield from (value for kept in part.inner.state.values() for value in kept.values())
