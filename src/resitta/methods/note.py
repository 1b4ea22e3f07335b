"""NOTE: instance-aware batch normalisation and prediction-balanced reservoir sampling (Gong et al., NeurIPS 2022)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from resitta.memory.pbrs import PBRS
from resitta.method import Learner, Method, graphed, register
from resitta.norm.bn_layers import updating_statistics
from resitta.norm.instance_aware_bn import InstanceAwareBN
from resitta.settings import setting
from resitta.training.entropy import entropy
from resitta.training.network import Network
from resitta.training.optimizer import Adam


@register("note")
@dataclass(frozen=True, kw_only=True)
class NOTE(Method):
    """Instance-aware BatchNorm and a prediction-balanced memory.

    Settings as its authors' code has them.
    """

    title: ClassVar[str] = "NOTE"
    paper: ClassVar[str] = (
        "Gong, Jeong, Kim, Kim, Shin, Lee. NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation. "
        "NeurIPS 2022."
    )

    lr: float = setting(1e-4, above=0, doc="learning rate of Adam")
    k: float = setting(4.0, at_least=0, doc="standard errors within which an instance keeps the running statistics")
    momentum: float = setting(0.01, at_least=0, at_most=1, doc="EMA rate of the running statistics")
    capacity: int = setting(64, at_least=1, doc="samples in the memory")
    update_every: int = setting(64, at_least=1, doc="samples between two updates")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return NOTELearner(self, network, generator)


class NOTELearner(Learner):
    """One network with instance-aware normalisation that trains on its memory."""

    learns_from_predictions = True

    def __init__(self, method: NOTE, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method = method
        iabn = partial(InstanceAwareBN, k=method.k, momentum=method.momentum)
        self.network = network.fork("affine").with_bn(iabn)
        self.optimizer = Adam(self.network.parameters(), lr=method.lr)
        self.bank = PBRS(method.capacity, generator=generator)

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; each sample is normalised on its own."""
        return self.network.predict(images)

    def may_update(self, images: Tensor) -> bool:
        """Only when enough samples have come."""
        return self.bank.due(len(images), every=self.method.update_every)

    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        """Fill the memory, and update whenever `update_every` further samples have come."""
        for _ in self.bank.fill(images, logits, every=self.method.update_every):
            self.update()

    def update(self) -> None:
        """One entropy step on everything in the memory."""
        if self.bank.size:
            self.learn(self.bank.samples)
            self.updates += 1

    @graphed
    def learn(self, samples: Tensor) -> Tensor:
        """One Adam step on the mean entropy, under the samples' own statistics; return the loss."""
        with updating_statistics(self):
            logits = self.network(samples)
        loss = entropy(logits).mean()
        self.optimizer.descend(loss)
        return loss.detach()
