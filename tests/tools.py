"""What tests of adapters share."""

import threading

from torch import Tensor


class Gate:
    """A strong view that stops an update until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, batch: Tensor) -> Tensor:
        self.reached.set()
        assert self.open.wait(20)
        return batch


OWN_METHOD = '''
from dataclasses import dataclass
import resitta
from resitta.methods.source import SourceLearner

@resitta.register("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(resitta.Method):
    """Source, with logits times a factor."""

    rate: float = resitta.setting(1.0)

    @property
    def trains(self):
        return "none"

    def start(self, network, generator):
        return Scaled(network)

class Scaled(SourceLearner):
    def predict(self, images):
        return FACTOR * self.network.predict(images)

    step = predict
'''
"""The file of a user who wrote a method; FACTOR stands for what they change in it."""
