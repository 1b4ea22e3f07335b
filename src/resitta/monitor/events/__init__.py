"""What happens inside an adapter, as it happens: `adapter.listen(callback)` calls back with frozen events.

>>> import torch
>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> adapter = adapt(tiny_network(), "resitta")
>>> adapter.listen(lambda event: print(event.updates, event.samples, event.turnover))
>>> _ = adapter(torch.rand(64, 3, 8, 8))
1 64 1.0

`TensorBoard(folder)` and `Prometheus()` are ready-made callbacks; each needs the extra of its name.
"""

from resitta.monitor.events.event import Event, EventHandler, GuardEnded, GuardFired, Restarted, Updated
from resitta.monitor.events.listener import Listener
from resitta.monitor.events.prometheus import Prometheus
from resitta.monitor.events.tensorboard import TensorBoard

__all__ = [
    "Event",
    "EventHandler",
    "GuardEnded",
    "GuardFired",
    "Listener",
    "Prometheus",
    "Restarted",
    "TensorBoard",
    "Updated",
]
