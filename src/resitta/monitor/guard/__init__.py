"""Guards: `adapt(model, guard=True)` survives bad frames, poisoned streams and its own collapse.

>>> import torch
>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> adapter = adapt(tiny_network(), "resitta", guard=Guard(action="rollback", window=1000))
>>> _ = adapter(torch.zeros(64, 3, 16, 16))  # black frames are predicted, but not learned from
>>> adapter.guard.counts["unknown"], adapter.stats.bank.occupancy
(64, 0)
"""

from resitta.monitor.guard.guard_callback import GuardCallback, guard_callback, load_guard
from resitta.monitor.guard.settings import Action, Guard

__all__ = ["Action", "Guard", "GuardCallback", "guard_callback", "load_guard"]
