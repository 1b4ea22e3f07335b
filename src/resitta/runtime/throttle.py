"""Throttle: updates yield to predictions at every normalisation layer.

A device executes its queue in order, so a prediction submitted after a whole update would wait for all of it. A
throttled update is submitted in small pieces: at every normalisation layer, in the forward and in the backward pass, it
waits until its own work is done and no prediction is pending.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from resitta.norm.bn_layers import AdaptiveBN

MAX_WAIT = 0.005
"""Seconds that a layer waits for predictions at most, so that updates progress under full load."""
POLL_SECONDS = 0.0001


class Throttle:
    """Makes the updates of a learner wait while `prediction()` is entered, or its work is on the device.

    >>> throttle = Throttle()
    >>> with throttle.prediction():
    ...     throttle.predicting()
    True
    >>> throttle.predicting()
    False
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.last: torch.cuda.Event | None = None
        self._inside = False
        self._hooks: list[RemovableHandle] = []

    @contextmanager
    def prediction(self) -> Iterator[None]:
        """Give priority to a prediction; one at a time."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def predicting(self) -> bool:
        """Whether a prediction is under way, on the host or, up to the event `last`, on the device."""
        return self._inside or not (self.last is None or self.last.query())  # type: ignore[no-untyped-call]

    def wait_for_predictions(self) -> None:
        """Wait for the update's own work so far, then for predictions, but not longer than `MAX_WAIT`."""
        if self.stream is not None:
            self.stream.synchronize()
        end = time.perf_counter() + MAX_WAIT
        while self.predicting() and time.perf_counter() < end:
            time.sleep(POLL_SECONDS)

    def attach(self, learner: nn.Module) -> None:
        """Throttle the updates of this learner, and no other, from now on."""
        for hook in self._hooks:
            hook.remove()
        layers = [module for module in learner.modules() if isinstance(module, AdaptiveBN)]
        self._hooks = [layer.register_forward_pre_hook(self._before_layer) for layer in layers]

    def _before_layer(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if layer.updating:
            self.wait_for_predictions()
            if inputs[0].requires_grad:
                inputs[0].register_hook(lambda _: self.wait_for_predictions())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a network for export do not learn
