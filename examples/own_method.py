"""A method of your own, in one file: batch statistics averaged over the stream, with no training at all.

Run it: python examples/own_method.py
Compare it: resitta bench MODEL DATA --methods source resitta examples/own_method.py:slow-bn
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import resitta
from resitta.norm.bn_layers import updating_statistics
from resitta.norm.resibn import ResiBN
from resitta.training.network import Network, Trained


@resitta.register("slow-bn")
@dataclass(frozen=True, kw_only=True)
class SlowBN(resitta.Method):
    """Every batch moves the BatchNorm statistics a little."""

    rate: float = resitta.setting(0.05, above=0, at_most=1)

    @property
    def trains(self) -> Trained:
        """No parameter moves, only statistics."""
        return "none"

    def start(self, network: Network, generator: torch.Generator) -> resitta.Learner:
        """Begin on a fresh stream."""
        return SlowBNLearner(self, network)


class SlowBNLearner(resitta.Learner):
    """The network and its moving statistics. Saving, moving and resetting need no code here."""

    def __init__(self, method: SlowBN, network: Network) -> None:
        super().__init__()
        self.network = network.fork().with_bn(partial(ResiBN, nu_b=method.rate))

    def predict(self, images: Tensor) -> Tensor:
        """Predict and change nothing."""
        return self.network(images)

    def step(self, images: Tensor) -> Tensor:
        """Predict, then let the statistics follow."""
        logits = self.predict(images)
        with torch.no_grad(), updating_statistics(self.network):
            self.network(images)
        self.updates += 1
        return logits

    def exportable_network(self) -> Network:
        """An ordinary BatchNorm network can hold all that was learned."""
        return self.network


if __name__ == "__main__":
    for check in resitta.check_method("slow-bn"):
        print("passed", check.replace("_", " "))
    print("known methods:", ", ".join(resitta.list_methods()))
