"""PL: train on one's own predictions as if they were labels (Lee, 2013)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.norm.bn_layers import BatchStatisticsBN, bn_layers
from resitta.settings import setting
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Adam


@register("pl")
@dataclass(frozen=True, kw_only=True)
class PseudoLabel(Method):
    """Hard pseudo-labels: one Adam step per batch, on batch statistics.

    `threshold`: only predictions at least this confident count; 0 takes them all. `parameters`: which of them train,
    the norm layers' "affine" ones as in other adaptation at test time, or "all" as in Lee's paper.
    """

    title: ClassVar[str] = "PL"
    needs: ClassVar[Needs] = "norm"
    paper: ClassVar[str] = (
        "Lee. Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method for Deep Neural Networks. "
        "ICML Workshop 2013."
    )

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    threshold: float = setting(0.0, at_least=0, at_most=1, doc="predictions below this confidence do not count")
    parameters: Literal["affine", "all"] = setting("affine", doc="which train: the norm layers' affine ones, or all")

    @property
    def trains(self) -> Trained:
        """As the setting says."""
        return self.parameters

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return PseudoLabelLearner(self, network)


def pseudo_label_loss(logits: Tensor, threshold: float) -> Tensor:
    """Mean cross entropy with the predicted labels, over the predictions that are confident enough.

    >>> pseudo_label_loss(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), threshold=0.9).item() < 1e-3
    True
    """
    losses = F.cross_entropy(logits, logits.argmax(dim=1), reduction="none")
    counted = (logits.softmax(dim=1).amax(dim=1) >= threshold).to(losses.dtype)
    return (losses * counted).sum() / counted.sum().clamp(min=1)


class PseudoLabelLearner(Learner):
    """One network that trains on every batch it predicts."""

    def __init__(self, method: PseudoLabel, network: Network) -> None:
        super().__init__()
        self.threshold = method.threshold
        self.network = network.fork(method.parameters).with_bn(BatchStatisticsBN)
        self.optimizer = Adam(self.network.parameters(), lr=method.lr)

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; BatchNorm layers take the batch's own statistics."""
        return self.network.predict(images)

    def step(self, images: Tensor) -> Tensor:
        """Predict, then train on the predictions."""
        logits = self.learn(images).clone()
        self.updates += 1
        return logits

    def exportable_network(self) -> Network | None:
        """The network, unless its predictions depend on the statistics of a batch."""
        return None if bn_layers(self.network.model) else self.network

    @graphed
    def learn(self, images: Tensor) -> Tensor:
        """One Adam step on the pseudo-labels; return the logits before it."""
        logits = self.network(images)
        self.optimizer.descend(pseudo_label_loss(logits, self.threshold))
        return logits.detach()
