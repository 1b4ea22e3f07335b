"""The callback behind `adapter.listen(callback)`."""

import logging

from torch import Tensor

from resitta.method import AdapterLike
from resitta.monitor.callbacks import Callback
from resitta.monitor.events.event import Event, EventHandler, Restarted, Updated
from resitta.training.entropy import entropy

logger = logging.getLogger(__name__)


class Listener(Callback):
    """Reports to one callback; what the callback raises is logged, and the stream goes on.

    Only an adapter with a listener pays for the numbers in `Updated`: some copies to the host after each update.
    """

    def __init__(self, callback: EventHandler) -> None:
        self.callback = callback
        self.updates = 0
        self.clock = 0

    def after_step(self, adapter: AdapterLike, images: Tensor, logits: Tensor) -> None:
        """Report an update, if the step brought one."""
        if adapter.learner.updates > self.updates:
            self.on_event(adapter, self._updated(adapter, logits))
        self.updates = adapter.learner.updates  # a rollback or a reset lowers it

    def on_event(self, adapter: AdapterLike, event: object) -> None:
        """Pass an event on."""
        if not isinstance(event, Event):
            return
        if isinstance(event, Restarted):
            self.updates = self.clock = 0
        try:
            self.callback(event)
        except Exception:
            logger.exception("a listener failed on %s; the adapter goes on", type(event).__name__)

    def _updated(self, adapter: AdapterLike, logits: Tensor) -> Updated:
        return Updated(
            samples=adapter.samples,
            updates=adapter.learner.updates,
            entropy=float(entropy(logits.float()).nanmean()),
            drift=adapter.stats.mean_drift,
            turnover=self._turnover(adapter),
        )

    def _turnover(self, adapter: AdapterLike) -> float | None:
        memory = adapter.learner.memory()
        if memory is None:
            return None
        fresh = memory.births[: memory.size] > self.clock
        self.clock = memory.clock
        return float(fresh.mean()) if memory.size else 0.0
