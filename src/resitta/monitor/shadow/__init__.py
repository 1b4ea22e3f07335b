"""Is adaptation helping? A share of the images also goes through the source network, and labels judge both.

>>> import torch
>>> from resitta import adapt
>>> from resitta.conformance import tiny_network
>>> adapter = adapt(tiny_network(), "resitta", shadow=0.5)
>>> logits = adapter(torch.rand(64, 3, 8, 8))
>>> ids = adapter.answered.ids
>>> ids, adapter.stats.shadow.predicted
(range(0, 64), 64)
>>> adapter.feedback(ids, torch.zeros(64, dtype=torch.long)).unknown
0
>>> adapter.stats.shadow.feedback.running.difference.value
0.0
"""

from resitta.monitor.shadow.comparison import Estimate, PairedAccuracy
from resitta.monitor.shadow.records import Agreement, Answered, FeedbackCount, FeedbackStats, ShadowStats

__all__ = [
    "Agreement",
    "Answered",
    "Estimate",
    "FeedbackCount",
    "FeedbackStats",
    "PairedAccuracy",
    "ShadowStats",
]
