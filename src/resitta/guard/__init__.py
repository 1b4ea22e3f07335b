"""Guards: `adapt(model, guard=True)` survives bad frames, poisoned streams and its own collapse.

>>> import torch
>>> from resitta import adapt
>>> from resitta.checks import tiny_network
>>> adapter = adapt(tiny_network(), "resitta", guard=Guard(action="rollback", window=1000))
>>> _ = adapter(torch.zeros(64, 3, 16, 16))  # black frames are predicted, but not learned from
>>> adapter.guard.counts["unknown"], adapter.stats.bank.occupancy
(64, 0)
"""

from resitta.guard.sentry import Sentry, load_guard, sentry_for
from resitta.guard.settings import Action, Guard

__all__ = ["Action", "Guard", "Sentry", "load_guard", "sentry_for"]
