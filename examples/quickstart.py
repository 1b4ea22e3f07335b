"""Wrap a model, stream images through it, look at what it learned, export it.

Run it: python examples/quickstart.py
"""

import torch

import resitta
from resitta.conformance import tiny_network

model = tiny_network()  # any classifier of yours with BatchNorm layers
adapter = resitta.adapt(model, "resitta")

for batch in torch.split(torch.rand(640, 3, 16, 16), 64):  # your stream: float images in [0, 1]
    logits = adapter(batch)

print(adapter.stats)
with adapter.paused():
    print("same predictions:", torch.allclose(adapter(batch), adapter.export()(batch), atol=1e-5))
adapter.reset()
print("after reset:", adapter.stats.samples, "samples")
