"""DeYO: entropy steps on samples whose prediction rests on shape (Lee et al., ICLR 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from resitta.accel.varying_sizes import varying_sizes
from resitta.method import Learner, Method, Needs, register
from resitta.norm.bn_layers import BatchStatisticsBN, bn_layers
from resitta.norm.early_layers import early_affine_names
from resitta.settings import setting
from resitta.training.destroyed_view import DESTRUCTIONS, Destruction
from resitta.training.entropy import entropy
from resitta.training.entropy_filter import certainty_weights, highest_entropy
from resitta.training.network import Network
from resitta.training.optimizer import Kind, make_optimizer


@register("deyo")
@dataclass(frozen=True, kw_only=True)
class DeYO(Method):
    """Entropy steps on samples that are certain and lose confidence when their shape is destroyed.

    `plpd`: the pseudo-label probability difference, p(ŷ|x) - p(ŷ|x') with x' the destroyed image, above which a sample
    counts; its authors take 0.2 where batches are small, mixed or of few classes. `layers` as in SAR.
    """

    title: ClassVar[str] = "DeYO"
    needs: ClassVar[Needs] = "norm"
    paper: ClassVar[str] = (
        "Lee, Jung, Lee, Park, Shin, Hwang, Yoon. Entropy is not Enough for Test-Time Adaptation: From the Perspective "
        "of Disentangled Factors. ICLR 2024."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {"optimizer": "adam", "lr": 1e-3},
        "cifar100": {"optimizer": "adam", "lr": 1e-3},
        "imagenet": {"optimizer": "sgd", "lr": 2.5e-4},
    }

    tau: float = setting(0.5, above=0, doc="τ_Ent / ln C, the entropy below which a sample may count")
    margin: float = setting(0.4, above=0, doc="E0 / ln C, the entropy at which a sample's weight is 1")
    plpd: float = setting(0.3, at_least=-1, at_most=1, doc="τ_PLPD, the loss of confidence above which a sample counts")
    destroy: Destruction = setting(
        "patch", doc="how shape is destroyed: patches or pixels shuffled, or the middle hidden"
    )
    layers: Literal["early", "all"] = setting("early", doc="norm layers that train: without the last quarter, or all")
    optimizer: Kind = setting("sgd", doc="which takes the steps")
    lr: float = setting(2.5e-4, above=0, doc="learning rate")
    momentum: float = setting(0.9, at_least=0, at_most=1, doc="momentum of SGD")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return DeYOLearner(self, network, generator)


def confidence_lost(logits: Tensor, destroyed: Tensor) -> Tensor:
    """PLPD = p(ŷ|x) - p(ŷ|x') of each row, ŷ the label predicted for the image as it is.

    >>> confidence_lost(torch.tensor([[9.0, -9.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([0.5000])
    """
    labels = logits.argmax(dim=1, keepdim=True)
    return (logits.softmax(dim=1).gather(1, labels) - destroyed.softmax(dim=1).gather(1, labels))[:, 0]


class DeYOLearner(Learner):
    """One network that trains on some of the samples it predicts."""

    def __init__(self, method: DeYO, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method, self.generator = method, generator
        trained = early_affine_names(network.model) if method.layers == "early" else network.trained_names("affine")
        self.network = network.fork(trained).with_bn(BatchStatisticsBN)
        parameters = self.network.parameters()
        self.optimizer = make_optimizer(method.optimizer, parameters, lr=method.lr, momentum=method.momentum)

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; BatchNorm layers take the batch's own statistics."""
        return self.network.predict(images)

    def exportable_network(self) -> Network | None:
        """The network, unless its predictions depend on the statistics of a batch."""
        return None if bn_layers(self.network.model) else self.network

    def step(self, images: Tensor) -> Tensor:
        """Predict, then learn from the samples that count, if any does.

        The destroyed images of the certain samples form a batch of their own, with statistics of its own: their number
        has to be known here.
        """
        logits = self.network(images)
        entropies = entropy(logits)
        certain = (entropies.detach() < highest_entropy(logits, self.method.tau)).nonzero()[:, 0]
        if len(certain):
            lost = self.confidence_lost(images[certain], logits[certain])
            counts = lost > self.method.plpd
            if counts.any():
                self.learn(entropies[certain[counts]], lost[counts], highest_entropy(logits, self.method.margin))
        return logits.detach()

    @torch.no_grad()
    def confidence_lost(self, images: Tensor, logits: Tensor) -> Tensor:
        """PLPD of images with these logits."""
        destroyed = DESTRUCTIONS[self.method.destroy](images, self.generator)
        with varying_sizes():
            return confidence_lost(logits, self.network(destroyed))

    def learn(self, entropies: Tensor, lost: Tensor, highest: float) -> None:
        """One step on the mean of w H with w = exp(E0 - H) + exp(PLPD)."""
        weights = certainty_weights(entropies, highest) + lost.exp()
        self.optimizer.descend((weights * entropies).mean())
        self.updates += 1
