"""RoTTA: robust batch normalisation, a category-balanced memory, time-aware self-training (Yuan et al., CVPR 2023)."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from resitta.memory.cstu import CSTU
from resitta.method import Learner, Method, graphed, register
from resitta.norm.robust_bn import RobustBN
from resitta.settings import setting
from resitta.training.network import Network
from resitta.training.self_training import SelfTraining, seeded_view
from resitta.training.strong_view import View


@register("rotta")
@dataclass(frozen=True, kw_only=True)
class RoTTA(Method):
    """Robust BatchNorm, a category-balanced memory, teacher and student.

    Settings as its authors' code has them. `intransigent`: the teacher keeps the source's parameters, though not its
    statistics, and the student predicts (arXiv 2609.02507); for long streams, on which a teacher that follows its
    student degrades.
    """

    title: ClassVar[str] = "RoTTA"
    paper: ClassVar[str] = "Yuan, Xie, Li. Robust Test-Time Adaptation in Dynamic Scenarios. CVPR 2023."

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    alpha: float = setting(0.05, at_least=0, at_most=1, doc="α, EMA rate of the BatchNorm statistics")
    nu: float = setting(0.001, at_least=0, at_most=1, doc="ν, EMA rate of the teacher's parameters")
    capacity: int = setting(64, at_least=1, doc="samples in the memory")
    update_every: int = setting(64, at_least=1, doc="samples between two updates")
    strong_view: View | None = setting(None, doc="augmentation, images -> images in [0, 1]; none is the paper's")
    per_sample: bool = setting(False, doc="draw the augmentation for each image, not once per batch")
    intransigent: bool = setting(False, doc="the teacher keeps the source's parameters, and the student predicts")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return RoTTALearner(self, network, generator)


def timeliness(ages: Tensor) -> Tensor:
    """The weight of a sample in the loss, e^(-a)/(1+e^(-a)), with a its age over the capacity.

    >>> timeliness(torch.tensor([0.0]))
    tensor([0.5000])
    """
    return torch.sigmoid(-ages)


class RoTTALearner(Learner):
    """A teacher and a student that learns from the memory; the teacher predicts unless it is intransigent."""

    learns_from_predictions = True

    def __init__(self, method: RoTTA, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method = method
        self.networks = SelfTraining(
            network,
            partial(RobustBN, alpha=method.alpha),
            view=seeded_view(method.strong_view, generator, per_sample=method.per_sample),
            lr=method.lr,
            nu=method.nu,
            channels_last=True,
            intransigent=method.intransigent,
        )
        self.bank = CSTU(method.capacity)

    def exportable_network(self) -> Network:
        """The network that predicts."""
        return self.networks.predictor

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of the teacher, or of the student of an intransigent one."""
        return self.networks.predictor.predict(images)

    def may_update(self, images: Tensor) -> bool:
        """Only when `update_every` samples have come."""
        return self.bank.due(len(images), every=self.method.update_every)

    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        """Add the samples to the memory, and adapt to it after every `update_every` of them."""
        for _ in self.bank.fill(images, logits, every=self.method.update_every):
            self.update()

    def update(self) -> None:
        """Adapt once to everything in the memory; recent samples weigh more."""
        views = self.networks.views(self.bank.samples)
        if views is None:
            return
        ages = torch.from_numpy((self.bank.ages + 1) / self.bank.capacity)  # its authors count from one here
        self.learn(*views, timeliness(ages).to(views[0]))
        self.updates += 1

    @graphed
    def learn(self, samples: Tensor, strong: Tensor, weights: Tensor) -> Tensor:
        """Student step and statistics EMA, teacher EMA; return the loss."""
        loss = self.networks.train_student(samples, strong, weights)  # RBN of both moves by α
        self.networks.move_teacher()  # θ' <- (1-ν) θ' + ν θ
        return loss
