"""Callbacks around each learning step: guards, listeners, autosave. `adapter.add_callback(callback)` attaches one.

>>> import torch
>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> class Counter(Callback):
...     images = 0
...     def after_step(self, adapter, images, logits):
...         self.images += len(images)
>>> counter = Counter()
>>> adapter = adapt(tiny_network(), "bn")
>>> adapter.add_callback(counter)
>>> _ = adapter(torch.rand(4, 3, 8, 8))
>>> counter.images
4
"""

from typing import Any, ClassVar

from torch import Tensor


class Callback:
    """Hooks around each learning step, all of which do nothing; override those you need.

    Callbacks are called in the order in which they were attached. A paused adapter and images that are predicted only
    (see `non_finite="skip"`) call none. What a hook raises reaches the caller of the adapter: from `before_step` it
    prevents the step, and nothing is learned; from `after_step`, the step is already complete. A step that
    fails itself leaves the adapter as it was, and `after_step` is not called.

    A copy or pickle of an adapter leaves out its callbacks, since two adapters must not write to one folder or one
    curve. Set `copied = True` for one that has no effect outside itself.
    """

    copied: ClassVar[bool] = False

    def before_step(self, adapter: Any, images: Tensor) -> None:
        """Called before the adapter predicts and learns. `adapter` is the `resitta.Adapter`."""

    def after_step(self, adapter: Any, images: Tensor, logits: Tensor) -> None:
        """Called with the logits after the adapter has learned."""

    def on_event(self, adapter: Any, event: object) -> None:
        """Called with what another callback reported through `adapter.emit(event)`."""
