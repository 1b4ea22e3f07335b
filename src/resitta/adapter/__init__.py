"""`adapt(model, "resitta")` wraps a classifier; calling the result predicts a batch and learns from it."""

from resitta.adapter.adapter import Adapter
from resitta.adapter.api import adapt, load, recover
from resitta.adapter.options import Options

__all__ = ["Adapter", "Options", "adapt", "load", "recover"]
