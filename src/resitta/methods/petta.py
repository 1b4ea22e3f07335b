"""PeTTA: persistent adaptation, which senses its divergence from the source and holds against it (NeurIPS 2024)."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.accel.cuda_graphs import ParallelStreams
from resitta.accel.low_memory_backward import LowMemoryBackward
from resitta.memory.cstu import CSTU
from resitta.method import Learner, Method, graphed, register
from resitta.norm.bn_layers import updating_statistics
from resitta.norm.robust_bn import RobustBN
from resitta.settings import setting
from resitta.training.class_features import ClassMeans, Variant, class_features
from resitta.training.entropy import labels_and_entropies
from resitta.training.features import penultimate
from resitta.training.network import Network
from resitta.training.optimizer import Adam
from resitta.training.self_training import seeded_view, soft_cross_entropy
from resitta.training.source_statistics import Source, SourceStatistics
from resitta.training.strong_view import View

Loss = Literal["sce", "ce"]
Regularizer = Literal["cosine", "l2"]


@register("petta")
@dataclass(frozen=True, kw_only=True)
class PeTTA(Method):
    """RoTTA's memory and BatchNorm, with rates that follow the divergence from the source; needs clean images.

    Settings as its authors' code has them. `variant` says how the divergence is computed: the paper's formula is near 1
    as soon as the features move, and the published numbers are those of the code. `loss`: the authors' code has "ce"
    for ImageNet, the paper "sce". The student learns from the whole memory after every batch.

    Classes that the source model predicts less than twice on the clean images have no part in the divergence.
    """

    title: ClassVar[str] = "PeTTA"
    paper: ClassVar[str] = (
        "Hoang, Vo, Do. Persistent Test-time Adaptation in Recurring Testing Scenarios. NeurIPS 2024."
    )
    without_source: ClassVar[str] = "rotta"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {"loss": "ce"}}

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    alpha: float = setting(1e-3, at_least=0, at_most=1, doc="α_0, EMA rate of the teacher at no divergence")
    lam: float = setting(10.0, at_least=0, doc="λ_0, weight of the regularizer at full divergence")
    anchor_weight: float = setting(1.0, at_least=0, doc="weight of the anchor's loss")
    beta: float = setting(0.05, at_least=0, at_most=1, doc="EMA rate of the mean features of a class")
    alpha_bn: float = setting(0.05, at_least=0, at_most=1, doc="EMA rate of the BatchNorm statistics")
    capacity: int = setting(64, at_least=1, doc="samples in the memory")
    loss: Loss = setting("sce", doc="symmetric cross entropy on both views, or cross entropy on the strong one")
    regularizer: Regularizer = setting("cosine", doc="how the student is compared with the source")
    variant: Variant = setting("code", doc="how the divergence is computed")
    features: str | None = setting(None, doc="a module's name; none is the input of the model's head")
    strong_view: View | None = setting(None, doc="augmentation, images -> images in [0, 1]; none is the paper's")
    per_sample: bool = setting(False, doc="draw the augmentation for each image, not once per batch")
    source: Source = setting(None, doc="clean images, or a file of `resitta prepare`")

    def prepare(self, network: Network, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the statistics of the features of each predicted class."""
        return class_features(network.fork(), batches, self.features)

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return PeTTALearner(self, network, generator)


def symmetric_cross_entropy(logits: Tensor, others: Tensor) -> Tensor:
    """CE(p, q) + CE(q, p) of each row, with gradients through both.

    >>> same = torch.tensor([[2.0, 0.0]])
    >>> symmetric_cross_entropy(same, same)  # twice the entropy
    tensor([0.7307])
    """
    return soft_cross_entropy(logits, others) + soft_cross_entropy(others, logits)


def distance_from(tensors: Sequence[Tensor], origins: Sequence[Tensor], kind: Regularizer) -> Tensor:
    """The mean over tensors of minus their cosine with their origin, or of the summed squares of their difference.

    >>> distance_from([torch.tensor([3.0, 4.0])], [torch.tensor([4.0, 3.0])], "cosine")
    tensor(-0.9600)
    """
    alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}  # tensors of one size are computed together
    for tensor, origin in zip(tensors, origins, strict=True):
        alike.setdefault(tensor.shape, []).append((tensor, origin.to(tensor)))
    stacks = [tuple(torch.stack(part).flatten(1) for part in zip(*pairs, strict=True)) for pairs in alike.values()]
    if kind == "cosine":
        return -torch.cat([F.cosine_similarity(now, then, dim=1) for now, then in stacks]).mean()
    return torch.cat([(now - then).square().sum(dim=1) for now, then in stacks]).mean()


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, rate: Tensor) -> None:
    """θ' <- (1-α) θ' + α θ, with a rate that is known on the device alone."""
    slow: list[Tensor] = list(teacher.parameters())
    fast: list[Tensor] = list(student.parameters())
    if slow:
        steps = list(torch._foreach_sub(fast, slow))
        torch._foreach_mul_(steps, rate.to(steps[0].dtype))
        torch._foreach_add_(slow, steps)


class PeTTALearner(Learner):
    """A teacher that predicts, a student that learns from the memory, and the source's parameters as an anchor."""

    def __init__(self, method: PeTTA, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        assert isinstance(method.source, SourceStatistics)  # an adapter sees to it
        self.method = method
        rbn = partial(RobustBN, alpha=method.alpha_bn)
        self.teacher = network.fork("affine", channels_last=True).with_bn(rbn).requires_grad_(False)
        self.student = network.fork("affine", channels_last=True).with_bn(rbn)
        self.anchor = network.fork(channels_last=True).with_bn(rbn)
        self.optimizer = Adam(self.student.parameters(), lr=method.lr)
        self.classes = ClassMeans(method.source.tensors, method.beta, method.variant).to(network.device)
        self.view = seeded_view(method.strong_view, generator, per_sample=method.per_sample)
        self.bank = CSTU(method.capacity)
        self.streams = ParallelStreams()

    def exportable_network(self) -> Network:
        """The teacher."""
        return self.teacher

    def predict(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.teacher.predict(images)

    def step(self, images: Tensor) -> Tensor:
        """Predict, add the samples to the memory, and adapt to it."""
        seen = self.teacher.predict(images, self.with_features)
        logits, features = seen.tensor_split((seen.shape[1] - self.classes.means.shape[1],), dim=1)
        self.bank.classes = logits.shape[1]
        self.bank.add(images, *labels_and_entropies(logits, self.replay))
        if self.bank.size:
            samples = self.bank.samples
            self.learn(samples, self.student.augment(samples, self.view), features, logits.argmax(dim=1))
            self.updates += 1
        return logits

    def with_features(self, images: Tensor) -> Tensor:
        """The teacher's logits and, beside them, its features."""
        logits, features = penultimate(self.teacher, images, self.method.features)
        return torch.cat((logits, features.to(logits.dtype)), dim=1)

    @graphed
    def learn(self, samples: Tensor, strong: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """One Adam step, and one of the teacher, at rates that the divergence sets; return the loss."""
        method, gamma = self.method, self.classes(features, labels)
        with updating_statistics(self):
            teacher, anchor, weak, hard = self._forward(samples, strong)
        if method.loss == "sce":
            losses = (symmetric_cross_entropy(weak, teacher) + symmetric_cross_entropy(hard, teacher)) / 4
        else:
            losses = soft_cross_entropy(hard, teacher)
        loss = (losses + method.anchor_weight * soft_cross_entropy(hard, anchor)).mean()
        if trained := {name: p for name, p in self.student.all_parameters() if p.requires_grad}:
            source = dict(self.anchor.all_parameters())
            away = distance_from(list(trained.values()), [source[name] for name in trained], method.regularizer)
            loss = loss + gamma * method.lam * away
        self.optimizer.descend(loss)
        follow(self.teacher, self.student, (1 - gamma) * method.alpha)
        return loss.detach()

    def _forward(self, samples: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The logits of teacher and anchor on the samples, and of the student on the samples and on the strong view.

        The student's statistics move twice. Inside a CUDA graph, teacher and anchor compute beside the student.
        """
        self.student.channels_last = self.anchor.channels_last = self.teacher.channels_last  # `predict` found it out
        with self.streams(samples), torch.no_grad():
            teacher, anchor = self.teacher(samples), self.anchor(samples)
        with LowMemoryBackward() if samples.is_cuda else nullcontext():
            with torch.set_grad_enabled(self.method.loss == "sce"):
                weak = self.student(samples)
            hard = self.student(strong)
        self.streams.join()
        return teacher, anchor, weak, hard
