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

    Callbacks are called in the order in which they were attached, but not for a paused adapter or for images that are
    predicted only (see `non_finite="skip"`). Exceptions of a hook propagate to the caller of the adapter: `before_step`
    prevents the step; at `after_step` it is already complete. A step that fails leaves the adapter unchanged, and
    `after_step` is not called.

    Copies and pickles of an adapter leave out its callbacks, since two adapters must not write to one folder or curve.
    Set `copied = True` for a callback without effects outside itself.
    """

    copied: ClassVar[bool] = False

    def before_step(self, adapter: Any, images: Tensor) -> None:
        """Called before the adapter predicts and learns. `adapter` is the `resitta.Adapter`."""

    def after_step(self, adapter: Any, images: Tensor, logits: Tensor) -> None:
        """Called with the logits after the adapter has learned."""

    def on_event(self, adapter: Any, event: object) -> None:
        """Called with what another callback reported through `adapter.emit(event)`."""
