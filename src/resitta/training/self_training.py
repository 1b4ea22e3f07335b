"""Self-training: a student learns the soft labels of a teacher, the teacher follows the student slowly."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from resitta.accel.low_memory_backward import Lean
from resitta.accel.parallel_streams import Branch
from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, updating_statistics
from resitta.training.anchor import Anchor
from resitta.training.entropy import log_probabilities
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Adam
from resitta.training.reduction import LocalReduction
from resitta.training.strong_view import StrongView, View


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
    slow: list[Tensor] = list(teacher.parameters())
    fast: list[Tensor] = list(student.parameters())
    if slow:
        torch._foreach_lerp_(slow, fast, nu)


def seeded_view(view: View | None, generator: torch.Generator, *, per_sample: bool) -> View:
    """The user's view, or the paper's strong view drawing from a generator."""
    return view or StrongView(generator, per_sample=per_sample)


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
        channels_last: bool = False,
        micro_batch: int | None = None,
        anchor: float = 0.0,
    ) -> None:
        super().__init__()
        self.teacher = network.fork(train, channels_last=channels_last).with_bn(wrap).requires_grad_(False)
        self.student = network.fork(train, channels_last=channels_last).with_bn(wrap)
        self.optimizer = Adam(self.student.parameters(), lr=lr)
        self.anchor = Anchor(self.student.parameters(), anchor)
        self.view = view
        self.train_all = train == "all"
        self.nu = nu
        self.micro_batch = micro_batch
        self.reduction = LocalReduction()
        self.branch = Branch()

    def predict(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        return self.teacher.predict(images)

    def strong(self, images: Tensor) -> Tensor:
        """Return what the student sees of the images."""
        return self.student.augment(images, self.view)

    def update(self, images: Tensor, strong: Tensor, weights: Tensor | None = None) -> Tensor:
        """Train the student on the strong view, towards what the teacher says of the plain images; return the loss.

        Both networks move their statistics in this pass; the teacher's parameters follow after the student's step.
        """
        self.student.channels_last = self.teacher.channels_last  # the teacher, predicting, finds out what it can take
        if self.micro_batch is None:
            with updating_statistics(self, self.reduction.moments):
                with self.branch(images):
                    targets = self.teacher(images)
                with self._sparing(strong):
                    logits = self.student(strong)
                self.branch.join()
            losses = soft_cross_entropy(logits, targets)
            loss = self.reduction.mean(losses if weights is None else losses * weights)
            self.optimizer.descend(loss, self.reduction.add_gradients)
        else:
            loss = self._descend_in_parts(images, strong, self.micro_batch)
        self.anchor(self.student.parameters())
        follow(self.teacher, self.student, self.nu)
        return loss.detach()

    def _descend_in_parts(self, images: Tensor, strong: Tensor, size: int) -> Tensor:
        """The same step with the activations of `size` samples in memory at a time; return the loss.

        A first pass without gradients moves the statistics by all samples. Since no gradient flows through them, the
        passes that follow may take the samples in parts.
        """
        with torch.no_grad(), updating_statistics(self):
            targets = self.teacher(images)
            self.student(strong)
        total, sums = torch.zeros((), device=images.device), [torch.zeros_like(p) for p in self.student.parameters()]
        for some, wanted in zip(torch.split(strong, size), torch.split(targets, size), strict=True):
            with self._sparing(some):
                logits = self.student(some)
            loss = soft_cross_entropy(logits, wanted).sum() / len(images)
            for accumulated, gradient in zip(sums, self.optimizer.gradients(loss), strict=True):
                if gradient is not None:
                    accumulated.add_(gradient)
            total += loss.detach()
        self.optimizer.step(sums, total)
        return total

    def _sparing(self, images: Tensor) -> AbstractContextManager[object]:
        """Spare memory where it is scarce; trained convolutions need their inputs, which ReLUs then keep for free."""
        return Lean() if images.is_cuda and not self.train_all else nullcontext()
