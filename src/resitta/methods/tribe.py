"""TRIBE: class-balanced normalisation, and tri-net self-training with an adapting anchor (Su et al., AAAI 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from resitta.accel.cuda_graphs import ParallelStreams
from resitta.accel.low_memory_backward import LowMemoryBackward
from resitta.method import Learner, Method, graphed, register
from resitta.norm.class_balanced_bn import ClassBalancedBN, capped_rates, labelled_batch, updating_classes
from resitta.norm.class_rows import Bits
from resitta.settings import setting
from resitta.training.entropy import entropy, log_probabilities
from resitta.training.network import Network
from resitta.training.optimizer import Adam
from resitta.training.self_training import seeded_view
from resitta.training.sharing import tie
from resitta.training.strong_view import View


@register("tribe")
@dataclass(frozen=True, kw_only=True)
class TRIBE(Method):
    """Class-balanced BatchNorm; a student learns hard labels of a teacher that an adapting anchor holds back.

    Settings as its authors' code has them. η grows with the number of classes C: max(.0005 C, .01). If no sample of a
    batch is certain enough, Adam takes a step along a gradient of zero, as the authors' code does.

    `statistics_bits=24` keeps the statistics of every class in 24 bits of floating point, rounded by at most 2⁻¹⁶:
    with many classes they take more memory than the network. The normalisation uses their mean over the classes.
    """

    title: ClassVar[str] = "TRIBE"
    paper: ClassVar[str] = (
        "Su, Xu, Jia. Towards Real-World Test-Time Adaptation: Tri-Net Self-Training with Balanced Normalization. "
        "AAAI 2024."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {},
        "cifar100": {"eta": 0.05, "gamma": 0.1, "h0": 0.2},
        "imagenet": {"eta": 0.5, "gamma": 0.5, "h0": 0.4, "lr": 5e-4, "statistics_bits": 24},
    }

    lr: float = setting(1e-3, above=0, doc="learning rate of Adam")
    eta: float = setting(0.01, above=0, at_most=1, doc="η, the rate at which a sample moves its class's statistics")
    gamma: float = setting(0.0, at_least=0, at_most=1, doc="γ, how much of that all classes share")
    h0: float = setting(0.05, above=0, doc="H_0: samples with less entropy than this share of ln C are learned from")
    lam: float = setting(0.5, at_least=0, doc="λ, weight of the anchor's loss")
    strong_view: View | None = setting(None, doc="augmentation, images -> images in [0, 1]; none is the paper's")
    per_sample: bool = setting(False, doc="draw the augmentation for each image, not once per batch")
    statistics_bits: Bits = setting(32, doc="precision of the statistics of each class")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return TRIBELearner(self, network, generator)


def mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the values that are chosen, zero if none is.

    >>> mean_of(torch.tensor([1.0, 5.0]), torch.tensor([False, True])), mean_of(torch.ones(1), torch.tensor([False]))
    (tensor(5.), tensor(0.))
    """
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


class TRIBELearner(Learner):
    """A teacher that predicts, a student, an anchor; teacher and student have the same parameters.

    Every network moves its own statistics, by the labels that the teacher predicted.
    """

    learns_from_predictions = True

    def __init__(self, method: TRIBE, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.method = method
        balanced = partial(ClassBalancedBN, classes=network.classes, gamma=method.gamma, bits=method.statistics_bits)
        self.teacher = network.fork("affine", channels_last=True).with_bn(balanced)
        self.student = network.fork("affine", channels_last=True).with_bn(balanced)
        self.anchor = network.fork(channels_last=True).with_bn(balanced)
        tie(self.teacher, to=self.student)
        self.optimizer = Adam(self.student.parameters(), lr=method.lr)
        self.view = seeded_view(method.strong_view, generator, per_sample=method.per_sample)
        self.streams = ParallelStreams()

    def exportable_network(self) -> Network:
        """The teacher."""
        return self.teacher

    @property
    def statistics_bytes(self) -> int:
        """How many bytes the statistics of the classes take, of all three networks."""
        return sum(layer.rows.nbytes for layer in self.modules() if isinstance(layer, ClassBalancedBN))

    def predict(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.teacher.predict(images)

    def learn_from(self, images: Tensor, logits: Tensor) -> None:
        """Move the statistics by the predicted labels, and train on the samples that are certain."""
        self.learn(images, self.student.augment(images, self.view), logits.argmax(dim=1))
        self.updates += 1

    @graphed
    def learn(self, images: Tensor, strong: Tensor, labels: Tensor) -> Tensor:
        """One Adam step on CE(student, teacher's label) + λ (teacher - anchor)² of certain samples; return the loss."""
        rates = capped_rates(labels, self.method.eta, torch.promote_types(images.dtype, torch.float32))
        with updating_classes(self, labelled_batch(labels, rates)):
            anchor, teacher, student = self._forward(images, strong)
        certain = entropy(teacher.detach()) < self.method.h0 * math.log(teacher.shape[1])
        surprise = -log_probabilities(student).gather(1, teacher.argmax(dim=1, keepdim=True))[:, 0]
        distance = (teacher - anchor).square().mean(dim=1)
        loss = mean_of(surprise, certain) + self.method.lam * mean_of(distance, certain)
        self.optimizer.descend(loss)
        return loss.detach()

    def _forward(self, images: Tensor, strong: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of anchor, teacher and student; inside a CUDA graph, the anchor beside the others."""
        self.student.channels_last = self.anchor.channels_last = self.teacher.channels_last  # `predict` found it out
        if not images.is_cuda:
            with torch.no_grad():
                anchor = self.anchor(images)
            return anchor, self.teacher(images), self.student(strong)
        with self.streams(images), torch.no_grad():
            anchor = self.anchor(images)
        with LowMemoryBackward():
            teacher, student = self.teacher(images), self.student(strong)
        self.streams.join()
        return anchor, teacher, student
