"""Source: the model as it was trained, in eval mode. What every other method has to beat."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, register
from resitta.training.network import Network, Trained


@register("source")
@dataclass(frozen=True, kw_only=True)
class Source(Method):
    """The model as it was trained: no adaptation at all."""

    title: ClassVar[str] = "Source"
    trains: ClassVar[Trained] = "none"
    needs: ClassVar[Needs] = "nothing"

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return SourceLearner(network)


class SourceLearner(Learner):
    """The source network alone."""

    learns = False

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.fork()

    def predict(self, images: Tensor) -> Tensor:
        """Return the source model's logits."""
        return self.network.predict(images)

    def exportable_network(self) -> Network:
        """The source network itself."""
        return self.network
