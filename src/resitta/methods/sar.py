"""SAR: sharpness-aware entropy steps on reliable samples, and recovery from collapse (Niu et al., ICLR 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.norm.bn_layers import BatchStatisticsBN, bn_layers
from resitta.norm.early_layers import early_affine_names
from resitta.settings import setting
from resitta.training.come import LOSSES, Loss
from resitta.training.entropy import entropy
from resitta.training.entropy_filter import highest_entropy, masked_mean
from resitta.training.network import Network
from resitta.training.optimizer import Kind, make_optimizer
from resitta.training.restart import Restart
from resitta.training.sam import SAM

UNKNOWN = -1.0
"""Stands for no average of the loss yet. NaN would look like a state that is broken."""


@register("sar")
@dataclass(frozen=True, kw_only=True)
class SAR(Method):
    """Sharpness-aware entropy steps on reliable samples, and a reset when predictions have become too certain.

    Meant for networks with GroupNorm or LayerNorm; BatchNorm layers take batch statistics. `layers`: "early" leaves
    the norm layers of the last quarter of the blocks alone. `variant`: "paper" begins anew after a reset; "code" keeps
    the momentum and the average of the loss, as the authors' code does, and then resets on every batch while
    predictions stay that certain. Their learning rate for a ViT is 1e-3 with batches of 64.
    """

    title: ClassVar[str] = "SAR"
    needs: ClassVar[Needs] = "norm"
    paper: ClassVar[str] = (
        "Niu, Wu, Zhang, Wen, Chen, Zhao, Tan. Towards Stable Test-Time Adaptation in Dynamic Wild World. ICLR 2023."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {"optimizer": "adam", "lr": 1e-3},
        "cifar100": {"optimizer": "adam", "lr": 1e-3},
        "imagenet": {"optimizer": "sgd", "lr": 2.5e-4},
    }

    margin: float = setting(0.4, above=0, doc="E0 / ln C, the entropy below which a sample is reliable")
    rho: float = setting(0.05, above=0, doc="ρ, how far the second pass is from the parameters")
    reset_below: float = setting(0.2, at_least=0, doc="average of the second loss below which all is reset")
    layers: Literal["early", "all"] = setting("early", doc="norm layers that train: without the last quarter, or all")
    variant: Literal["paper", "code"] = setting("paper", doc="what a reset leaves: nothing, or momentum and average")
    loss: Loss = setting("entropy", doc="what is minimised: the entropy, or COME's")
    optimizer: Kind = setting("sgd", doc="which takes the steps")
    lr: float = setting(2.5e-4, above=0, doc="learning rate")
    momentum: float = setting(0.9, at_least=0, at_most=1, doc="momentum of SGD")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return SARLearner(self, network)


class SARLearner(Learner):
    """One network that trains on its reliable samples; `average` is the moving average of the second loss, or NaN."""

    average: Tensor

    def __init__(self, method: SAR, network: Network) -> None:
        super().__init__()
        self.method, self.loss = method, LOSSES[method.loss]
        trained = early_affine_names(network.model) if method.layers == "early" else network.trained_names("affine")
        self.network = network.fork(trained).with_bn(BatchStatisticsBN)
        parameters = self.network.parameters()
        self.sam = SAM(
            make_optimizer(method.optimizer, parameters, lr=method.lr, momentum=method.momentum), rho=method.rho
        )
        self.restart = Restart(self.sam.base.trained)
        precision = torch.promote_types(network.dtype, torch.float32)
        self.register_buffer("average", torch.full((), UNKNOWN, dtype=precision, device=network.device))

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; BatchNorm layers take the batch's own statistics."""
        return self.network.predict(images)

    def exportable_network(self) -> Network | None:
        """The network, unless its predictions depend on the statistics of a batch."""
        return None if bn_layers(self.network.model) else self.network

    def step(self, images: Tensor) -> Tensor:
        """Predict, then learn from what is reliable."""
        logits = self.learn(images).clone()
        self.updates += 1
        return logits

    @graphed
    def learn(self, images: Tensor) -> Tensor:
        """One step in two passes, and a reset if need be; return the logits before it.

        Where no sample is reliable the gradients are zero, and the momentum alone moves the parameters.
        """
        logits = self.network(images)
        reliable, kept = self.reliable(logits), []

        def again() -> Tensor:
            perturbed = self.network(images)
            kept.append(reliable & self.reliable(perturbed))
            return masked_mean(self.loss(perturbed), kept[0])

        worst = self.sam.descend(masked_mean(self.loss(logits), reliable), again)
        self.recover(worst.to(self.average.dtype), kept[0].any() & worst.isfinite())
        return logits.detach()

    @torch.no_grad()
    def reliable(self, logits: Tensor) -> Tensor:
        """Which samples have an entropy below E0."""
        return entropy(logits) < highest_entropy(logits, self.method.margin)

    @torch.no_grad()
    def recover(self, loss: Tensor, known: Tensor) -> None:
        """Let the average follow a loss that is known, and return to the source when it is too low."""
        moved = torch.where(self.average < 0, loss, 0.9 * self.average + 0.1 * loss)
        self.average.copy_(torch.where(known, moved, self.average))
        collapsed = (self.average >= 0) & (self.average < self.method.reset_below)
        self.restart.parameters_of(self.sam.base, collapsed)
        if self.method.variant == "paper":
            self.sam.base.forget(collapsed)
            self.average.masked_fill_(collapsed, UNKNOWN)
