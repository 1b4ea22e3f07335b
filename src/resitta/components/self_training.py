"""Self-training: a student learns the soft labels of a teacher, the teacher follows the student slowly."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from resitta.components.bn_layers import AdaptiveBN, BatchNorm, updating_statistics
from resitta.components.entropy import log_probabilities
from resitta.components.network import Network, Trained
from resitta.components.optimizer import Adam
from resitta.components.union import Union
from resitta.components.views import View, strong_view


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """CE(p, q) = -Σ p log q of each row, with p from the target's logits and q from the logits.

    >>> same = torch.tensor([[2.0, 0.0]])
    >>> soft_cross_entropy(same, same)  # of a distribution with itself: its entropy
    tensor([0.3653])
    """
    return -(target_logits.softmax(dim=1) * log_probabilities(logits)).sum(dim=1)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, nu: float) -> None:
    """θ' <- (1-ν) θ' + ν θ, parameters only: each network keeps its own statistics.

    >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
    >>> follow(teacher, student, nu=0.25)
    >>> teacher.weight.item()
    0.25
    """
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.lerp_(fast, nu)


def seeded_view(view: View | None, generator: torch.Generator, *, per_sample: bool) -> View:
    """The user's view, or the paper's strong view drawing from a generator."""
    return view or partial(strong_view, generator=generator, per_sample=per_sample)


class SelfTraining(nn.Module):
    """A teacher and a student that share every parameter they do not train."""

    def __init__(
        self,
        network: Network,
        wrap: Callable[[BatchNorm], AdaptiveBN],
        *,
        view: View,
        lr: float,
        nu: float,
        train: Trained = "affine",
    ) -> None:
        super().__init__()
        self.teacher = network.fork(train).with_bn(wrap).requires_grad_(False)
        self.student = network.fork(train).with_bn(wrap)
        self.optimizer = Adam(self.student.parameters(), lr=lr)
        self.view = view
        self.nu = nu
        self.union = Union()

    def predict(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.teacher(images)

    def update(self, samples: Tensor, weights: Tensor | None = None) -> bool:
        """Train the student on the strong view, towards what the teacher says of the plain samples.

        Both networks move their statistics in this pass; the teacher's parameters follow after the student's step.
        Return whether there was anything to learn from.
        """
        images = self.union.begin(samples)
        if images is None:
            return False
        strong = self.student.augment(images, self.view)
        with updating_statistics(self, self.union.moments):
            targets = self.teacher(images)
            logits = self.student(strong)
        losses = soft_cross_entropy(logits, targets)
        loss = self.union.mean(losses if weights is None else losses * weights.to(losses))
        self.optimizer.descend(loss, self.union.add_gradients)
        follow(self.teacher, self.student, self.nu)
        return True
