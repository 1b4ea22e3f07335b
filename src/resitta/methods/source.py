"""Source: the model as it was trained, in eval mode. What every other method has to beat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resitta.components.network import Network, Trained
from resitta.method import Learner, Method, Needs
from resitta.registry import register


@register("source")
@dataclass(frozen=True, kw_only=True)
class Source(Method):
    """No adaptation at all."""

    needs: ClassVar[Needs] = "nothing"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {}}

    @property
    def trains(self) -> Trained:
        """Nothing."""
        return "none"

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return SourceLearner(network)


class SourceLearner(Learner):
    """The source network alone."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.fork()

    def predict(self, images: Tensor) -> Tensor:
        """Return the source model's logits."""
        logits: Tensor = self.network(images)
        return logits

    step = predict

    def deployed(self) -> Network:
        """The source network itself."""
        return self.network
