"""RDumb (Press et al., NeurIPS 2023) as a method of your own: it trains, selects its samples, and begins anew at times.

Run it: python examples/own_rdumb.py
Check it: resitta check examples/own_rdumb.py:my-rdumb --set period=3
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

import resitta
from resitta.method import Needs
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.training.entropy import entropy
from resitta.training.network import Network
from resitta.training.optimizer import SGD


@resitta.register("my-rdumb")
@dataclass(frozen=True, kw_only=True)
class MyRDumb(resitta.Method):
    """Entropy steps on samples that are certain and unlike the last ones, and a full reset every so many batches.

    `margin`: certain means an entropy below margin · ln C. `similarity`: unlike means a prediction whose cosine with
    the running mean of predictions is below this.
    """

    needs: ClassVar[Needs] = "batch_norm"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {"similarity": 0.4},
        "cifar100": {"similarity": 0.1},
        "imagenet": {"similarity": 0.05},
    }

    lr: float = resitta.setting(2.5e-4, above=0)
    momentum: float = resitta.setting(0.9, at_least=0, at_most=1)
    margin: float = resitta.setting(0.4, above=0)
    similarity: float = resitta.setting(0.4, above=0)
    period: int = resitta.setting(1000, at_least=1)

    def start(self, network: Network, generator: torch.Generator) -> resitta.Learner:
        """Begin on a fresh stream."""
        return MyRDumbLearner(self, network)


class MyRDumbLearner(resitta.Learner):
    """The network that trains, where it began, and the running mean of what it predicted."""

    running_mean: Tensor

    def __init__(self, method: MyRDumb, network: Network) -> None:
        super().__init__()
        self.method = method
        self.highest_entropy = method.margin * math.log(network.classes)
        self.begin = network.fork("affine").with_bn(BatchStatisticsBN).requires_grad_(False)
        self.network = network.fork("affine").with_bn(BatchStatisticsBN)
        # A registered buffer is saved, loaded and moved with the learner; a plain attribute would be lost.
        self.register_buffer("running_mean", torch.zeros(network.classes, dtype=network.dtype, device=network.device))
        self.restart()

    def predict(self, images: Tensor) -> Tensor:
        """Predict and change nothing."""
        return self.network.predict(images)

    def step(self, images: Tensor) -> Tensor:
        """Predict, learn from some of the predictions, and begin anew when it is time to."""
        if self.updates % self.method.period == 0:
            self.restart()
        self.updates += 1
        logits = self.network(images)
        self.learn(logits)
        return logits.detach()

    @torch.no_grad()
    def restart(self) -> None:
        """Forget everything but the number of batches."""
        for parameter, first in zip(self.network.parameters(), self.begin.parameters(), strict=True):
            parameter.copy_(first)
        self.optimizer = SGD(self.network.parameters(), lr=self.method.lr, momentum=self.method.momentum)
        self.running_mean.zero_()

    def learn(self, logits: Tensor) -> None:
        """Make certain predictions more certain, unless they only repeat the last ones."""
        entropies, predicted = entropy(logits), logits.detach().softmax(dim=1)
        alike = cosine_similarity(self.running_mean[None], predicted).abs()  # 0 while the mean is still empty
        kept = (entropies < self.highest_entropy) & (alike < self.method.similarity)
        if not kept.any():
            return
        mean = predicted[kept].mean(dim=0)
        self.running_mean.copy_(0.9 * self.running_mean + 0.1 * mean if self.running_mean.any() else mean)
        weights = torch.exp(self.highest_entropy - entropies.detach())
        self.optimizer.descend((weights * entropies)[kept].mean())


if __name__ == "__main__":
    for check in resitta.check_method(MyRDumb(period=3)):
        print("passed", check.replace("_", " "))
