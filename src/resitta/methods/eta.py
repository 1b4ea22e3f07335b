"""ETA: entropy steps on samples that are certain and not redundant (Niu et al., ICML 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.norm.bn_layers import BatchStatisticsBN, bn_layers
from resitta.settings import setting
from resitta.training.come import Loss
from resitta.training.entropy_filter import EntropyFilter
from resitta.training.network import Network
from resitta.training.optimizer import Kind, make_optimizer

PAPER = "Niu, Wu, Zhang, Chen, Zheng, Zhao, Tan. Efficient Test-Time Model Adaptation without Forgetting. ICML 2022."
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"epsilon": 0.4, "optimizer": "adam", "lr": 1e-3},
    "cifar100": {"epsilon": 0.1, "optimizer": "adam", "lr": 1e-3},
    "imagenet": {"epsilon": 0.05, "optimizer": "sgd", "lr": 2.5e-4},
}
"""ImageNet as its authors have it; CIFAR as in the benchmark of Döbler et al."""


@register("eta")
@dataclass(frozen=True, kw_only=True)
class ETA(Method):
    """Entropy steps on samples that are certain and not redundant, on batch statistics.

    ETA is EATA without its penalty, and so without source data.
    """

    title: ClassVar[str] = "ETA"
    needs: ClassVar[Needs] = "norm"
    paper: ClassVar[str] = PAPER
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    margin: float = setting(0.4, above=0, doc="E0 / ln C, the entropy below which a sample is reliable")
    epsilon: float = setting(0.05, above=0, doc="ε, cosine to the mean prediction from which a sample is redundant")
    loss: Loss = setting("entropy", doc="what is minimised: the entropy, or COME's")
    optimizer: Kind = setting("sgd", doc="which takes the steps")
    lr: float = setting(2.5e-4, above=0, doc="learning rate")
    momentum: float = setting(0.9, at_least=0, at_most=1, doc="momentum of SGD")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return ETALearner(self, network)


class ETALearner(Learner):
    """One network that trains on some of the samples it predicts. `penalty`: added to the loss, from the parameters."""

    def __init__(self, method: ETA, network: Network, penalty: nn.Module | None = None) -> None:
        super().__init__()
        self.network = network.fork("affine").with_bn(BatchStatisticsBN)
        self.filter = EntropyFilter(network, margin=method.margin, epsilon=method.epsilon, loss=method.loss)
        parameters = self.network.parameters()
        self.optimizer = make_optimizer(method.optimizer, parameters, lr=method.lr, momentum=method.momentum)
        self.penalty = penalty

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; BatchNorm layers take the batch's own statistics."""
        return self.network.predict(images)

    def exportable_network(self) -> Network | None:
        """The network, unless its predictions depend on the statistics of a batch."""
        return None if bn_layers(self.network.model) else self.network

    def step(self, images: Tensor) -> Tensor:
        """Predict, then learn from what is reliable and new."""
        logits = self.learn(images).clone()
        self.updates += 1
        return logits

    @graphed
    def learn(self, images: Tensor) -> Tensor:
        """One step, if any sample is kept; return the logits before it."""
        logits = self.network(images)
        loss, any_kept = self.filter(logits)
        if self.penalty is not None:
            loss = loss + self.penalty(self.optimizer.trained)
        self.optimizer.descend(loss, when=any_kept)
        return logits.detach()
