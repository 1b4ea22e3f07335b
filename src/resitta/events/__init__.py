"""What happens inside an adapter, as it happens: `adapter.listen(callback)` calls back with frozen events.

>>> import torch
>>> from resitta import adapt
>>> from resitta.checks import tiny_network
>>> adapter = adapt(tiny_network(), "resitta")
>>> adapter.listen(lambda event: print(event.updates, event.samples, event.turnover))
>>> _ = adapter(torch.rand(64, 3, 8, 8))
1 64 1.0

`TensorBoard(folder)` and `Prometheus()` are ready-made callbacks; each needs the extra of its name.
"""

from resitta.events.event import Callback, Event, GuardEnded, GuardFired, Restarted, Updated
from resitta.events.listener import Listener
from resitta.events.prometheus import Prometheus
from resitta.events.tensorboard import TensorBoard

__all__ = [
    "Callback",
    "Event",
    "GuardEnded",
    "GuardFired",
    "Listener",
    "Prometheus",
    "Restarted",
    "TensorBoard",
    "Updated",
]
