"""Throttle: an update that makes way for predictions, layer by layer.

A device works off what it is given in order, so a prediction that comes while a whole update is queued would wait for
all of it. A paced update is given out in small pieces: at every normalisation layer, on the way forth and on the way
back, it waits for its own work to be done and for predictions to pass.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from resitta.norm.bn_layers import AdaptiveBN

PATIENCE = 0.005
"""How many seconds a layer waits for predictions at most: under full load updates get on slowly, but they do."""
NAP = 0.0001


class Throttle:
    """Makes the updates of a learner step aside while `prediction()` is entered, or its work is on the device.

    >>> pace = Throttle()
    >>> with pace.prediction():
    ...     pace.predicting()
    True
    >>> pace.predicting()
    False
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.last: torch.cuda.Event | None = None
        self._inside = False
        self._hooks: list[RemovableHandle] = []

    @contextmanager
    def prediction(self) -> Iterator[None]:
        """Give a prediction the way; one at a time."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def predicting(self) -> bool:
        """Whether a prediction is under way, on the host or, up to the event `last`, on the device."""
        return self._inside or not (self.last is None or self.last.query())  # type: ignore[no-untyped-call]

    def step_aside(self) -> None:
        """Wait for the update's own work so far, then for predictions, with limited patience."""
        if self.stream is not None:
            self.stream.synchronize()
        end = time.perf_counter() + PATIENCE
        while self.predicting() and time.perf_counter() < end:
            time.sleep(NAP)

    def slow(self, learner: nn.Module) -> None:
        """Throttle the updates of this learner, and no other, from now on."""
        for hook in self._hooks:
            hook.remove()
        layers = [module for module in learner.modules() if isinstance(module, AdaptiveBN)]
        self._hooks = [layer.register_forward_pre_hook(self._at_layer) for layer in layers]

    def _at_layer(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if layer.updating:
            self.step_aside()
            if inputs[0].requires_grad:
                inputs[0].register_hook(self._on_the_way_back)

    def _on_the_way_back(self, gradient: Tensor) -> None:
        self.step_aside()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a network, for an export, do not learn
