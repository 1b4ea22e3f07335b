"""CoTTA: augmentation-averaged pseudo-labels and stochastic restoring (Wang et al., CVPR 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.settings import setting
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Adam
from resitta.training.self_training import ema_update, seeded_view, soft_cross_entropy
from resitta.training.strong_view import View, device_generator


@register("cotta")
@dataclass(frozen=True, kw_only=True)
class CoTTA(Method):
    """An augmentation-averaged teacher and stochastic restoring.

    Settings as its authors' code has them. `threshold`: below this mean confidence of the source model the teacher
    averages over `views` augmented copies. `restore`: the probability with which a weight of the student returns to
    the source after a step.
    """

    title: ClassVar[str] = "CoTTA"
    trains: ClassVar[Trained] = "all"
    needs: ClassVar[Needs] = "nothing"
    paper: ClassVar[str] = "Wang, Fink, Van Gool, Dai. Continual Test-Time Domain Adaptation. CVPR 2022."
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {"threshold": 0.92, "restore": 0.01},
        "cifar100": {"threshold": 0.72, "restore": 0.01},
        "imagenet": {"threshold": 0.1, "restore": 0.001},
    }

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    nu: float = setting(0.001, at_least=0, at_most=1, doc="EMA rate of the teacher's parameters")
    views: int = setting(32, at_least=1, doc="augmented copies that the teacher averages over")
    threshold: float = setting(
        0.92, at_least=0, at_most=1, doc="mean confidence of the source below which the teacher averages"
    )
    restore: float = setting(0.01, at_least=0, at_most=1, doc="probability that a weight returns to the source")
    strong_view: View | None = setting(None, doc="augmentation, images -> images in [0, 1]; none is the paper's")
    per_sample: bool = setting(False, doc="draw the augmentation for each image, not once per batch")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return CoTTALearner(self, network, generator)


class CoTTALearner(Learner):
    """A student, a teacher that follows it, and the source as an anchor; BatchNorm is on batch statistics."""

    def __init__(self, method: CoTTA, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method = method
        self.generator = generator
        self.anchor = network.fork(channels_last=True).with_bn(BatchStatisticsBN)
        self.teacher = network.fork("all", channels_last=True).with_bn(BatchStatisticsBN).requires_grad_(False)
        self.student = network.fork("all", channels_last=True).with_bn(BatchStatisticsBN)
        self.optimizer = Adam(self.student.parameters(), lr=method.lr)
        self.view = seeded_view(method.strong_view, generator, per_sample=method.per_sample)

    def predict(self, images: Tensor) -> Tensor:
        """Return the teacher's logits, averaged over augmented copies when the source is unsure of the batch."""
        confidence = self.anchor.predict(images).softmax(dim=1).amax(dim=1).mean()
        if confidence >= self.method.threshold:
            return self.teacher.predict(images)
        copies = [self.teacher.predict(self.teacher.augment(images, self.view)) for _ in range(self.method.views)]
        return torch.stack(copies).mean(dim=0)

    def step(self, images: Tensor) -> Tensor:
        """Predict with the teacher, train the student on it, let the teacher follow, restore."""
        targets = self.predict(images)
        self.learn(images, targets)
        self.restore()
        self.updates += 1
        return targets

    @graphed
    def learn(self, images: Tensor, targets: Tensor) -> Tensor:
        """One Adam step of the student, then the teacher follows; return the loss."""
        self.student.channels_last = self.teacher.channels_last  # `predict` of the teacher found out which layout works
        loss = soft_cross_entropy(self.student(images), targets).mean()
        self.optimizer.descend(loss)
        ema_update(self.teacher, self.student, self.method.nu)
        return loss.detach()

    @torch.no_grad()
    def restore(self) -> None:
        """Give each weight of the student back its source value with a small probability."""
        source = dict(self.anchor.all_parameters())
        generator = device_generator(self.generator, self.student.device)
        for name, weight in self.student.all_parameters():
            chance = torch.rand(weight.shape, generator=generator, device=weight.device)
            weight.copy_(torch.where(chance < self.method.restore, source[name], weight))
