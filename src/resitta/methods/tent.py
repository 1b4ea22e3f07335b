"""TENT: minimise the entropy of the predictions on the batch at hand (Wang et al., ICLR 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.norm.bn_layers import BatchStatisticsBN, bn_layers
from resitta.settings import setting
from resitta.training.come import LOSSES, Loss
from resitta.training.network import Network
from resitta.training.optimizer import Adam


@register("tent")
@dataclass(frozen=True, kw_only=True)
class Tent(Method):
    """Entropy minimisation: one Adam step per batch on the norm layers' affine parameters, on batch statistics."""

    title: ClassVar[str] = "TENT"
    needs: ClassVar[Needs] = "norm"
    paper: ClassVar[str] = (
        "Wang, Shelhamer, Liu, Olshausen, Darrell. Tent: Fully Test-Time Adaptation by Entropy Minimization. ICLR 2021."
    )

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    loss: Loss = setting("entropy", doc="what is minimised: the entropy, or COME's")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return TentLearner(self, network)


class TentLearner(Learner):
    """One network that trains on every batch it predicts."""

    def __init__(self, method: Tent, network: Network) -> None:
        super().__init__()
        self.loss = LOSSES[method.loss]
        self.network = network.fork("affine").with_bn(BatchStatisticsBN)
        self.optimizer = Adam(self.network.parameters(), lr=method.lr)

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; BatchNorm layers take the batch's own statistics."""
        return self.network.predict(images)

    def step(self, images: Tensor) -> Tensor:
        """Predict, then make these predictions more certain."""
        logits = self.learn(images).clone()
        self.updates += 1
        return logits

    def exportable_network(self) -> Network | None:
        """The network, unless its predictions depend on the statistics of a batch."""
        return None if bn_layers(self.network.model) else self.network

    @graphed
    def learn(self, images: Tensor) -> Tensor:
        """One Adam step on the mean loss; return the logits before it."""
        logits = self.network(images)
        self.optimizer.descend(self.loss(logits).mean())
        return logits.detach()
