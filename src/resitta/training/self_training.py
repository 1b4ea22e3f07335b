"""Self-training: a student learns the soft labels of a teacher, whose parameters are an EMA of the student's."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from resitta.accel.cuda_graphs import ParallelStreams
from resitta.accel.low_memory_backward import LowMemoryBackward
from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, batch_moments, updating_statistics
from resitta.training.entropy import log_probabilities
from resitta.training.network import Network, Trained
from resitta.training.optimizer import Adam, Gradients
from resitta.training.strong_view import StrongView, View


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """CE(p, q) = -Σ p log q of each row, with p from the target's logits and q from the logits.

    >>> same = torch.tensor([[2.0, 0.0]])
    >>> soft_cross_entropy(same, same)  # of a distribution with itself: its entropy
    tensor([0.3653])
    """
    return -(target_logits.softmax(dim=1) * log_probabilities(logits)).sum(dim=1)


@torch.no_grad()
def ema_update(teacher: nn.Module, student: nn.Module, nu: float) -> None:
    """θ' <- (1-ν) θ' + ν θ, parameters only: each network keeps its own statistics.

    >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
    >>> ema_update(teacher, student, nu=0.25)
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


class Anchor(nn.Module):
    """Pulls parameters toward the values θ_s they had at the start: θ <- (1-a) θ + a θ_s.

    Adam moves a parameter by at most about its learning rate per step, so it stays within lr / a of the source
    however long the stream.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> anchor = Anchor([weight], pull=0.25)
    >>> _ = weight.data.fill_(5.0)
    >>> anchor([weight])
    >>> weight.data
    tensor([4.])
    """

    def __init__(self, parameters: Iterable[Tensor], pull: float) -> None:
        super().__init__()
        self.pull = pull
        for number, parameter in enumerate(parameters if pull else ()):
            self.register_buffer(f"source_{number}", parameter.detach().clone(), persistent=False)

    @torch.no_grad()
    def forward(self, parameters: Iterable[Tensor]) -> None:
        """Pull the parameters toward the source, in place."""
        if pairs := list(zip(parameters, self.buffers(), strict=True)) if self.pull else []:
            sources = [source.to(parameter.dtype) for parameter, source in pairs]  # converted, they may differ
            torch._foreach_lerp_([parameter for parameter, _ in pairs], sources, self.pull)


class LocalReduction:
    """The samples of this process alone; `resitta.distributed.group` has the same four methods over processes."""

    def begin(self, samples: Tensor) -> Tensor | None:
        """Return the images that this process computes an update with, or None if there is nothing to learn from."""
        return samples if len(samples) else None

    moments = staticmethod(batch_moments)

    def mean(self, losses: Tensor) -> Tensor:
        """Return the mean of the losses."""
        return losses.mean()

    def add_gradients(self, gradients: Gradients) -> Gradients:
        """Return the gradients of that mean, given those of this process's part."""
        return gradients


class SelfTraining(nn.Module):
    """A teacher and a student that share every parameter they do not train.

    `intransigent`: the teacher keeps the source's parameters and only moves its statistics, and the student predicts.
    """

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
        intransigent: bool = False,
    ) -> None:
        super().__init__()
        self.teacher = network.fork(train, channels_last=channels_last).with_bn(wrap).requires_grad_(False)
        self.student = network.fork(train, channels_last=channels_last).with_bn(wrap)
        self.optimizer = Adam(self.student.parameters(), lr=lr)
        self.anchor = Anchor(self.student.parameters(), anchor)
        self.view = view
        self.train_all = train == "all"
        self.nu = nu
        self.intransigent = intransigent
        self.micro_batch = micro_batch
        self.reduction = LocalReduction()
        self.streams = ParallelStreams()

    @property
    def predictor(self) -> Network:
        """The network that predicts: the teacher, or the student of an intransigent one."""
        return self.student if self.intransigent else self.teacher

    def views(self, samples: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the weak and the strong view of an update's samples, or None if there is nothing to learn from."""
        weak = self.reduction.begin(samples)
        return None if weak is None else (weak, self.student.augment(weak, self.view))

    def train_student(self, images: Tensor, strong: Tensor, weights: Tensor | None = None) -> Tensor:
        """One Adam step of the student on the strong view, toward the teacher's soft labels; return the loss.

        Both networks move their statistics in these forward passes.
        """
        layout = self.predictor.channels_last  # its `predict` found out which layout works
        self.student.channels_last = self.teacher.channels_last = layout
        if self.micro_batch is None:
            with updating_statistics(self, self.reduction.moments):
                targets, logits = self._forward(images, strong)
            losses = soft_cross_entropy(logits, targets)
            loss = self.reduction.mean(losses if weights is None else losses * weights)
            self.optimizer.descend(loss, self.reduction.add_gradients)
        else:
            loss = self._descend_in_parts(images, strong, self.micro_batch)
        self.anchor(self.student.parameters())
        return loss.detach()

    def move_teacher(self) -> None:
        """Teacher EMA, θ' <- (1-ν) θ' + ν θ, unless the teacher is intransigent."""
        if not self.intransigent:
            ema_update(self.teacher, self.student, self.nu)

    def _forward(self, images: Tensor, strong: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the teacher and of the student; inside a CUDA graph, side by side."""
        if not images.is_cuda:
            return self.teacher(images), self.student(strong)
        with self.streams(images):
            targets = self.teacher(images)
        with self._sparing(strong):
            logits = self.student(strong)
        self.streams.join()
        return targets, logits

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
        """Save memory on a CUDA device; trained convolutions need their inputs, which ReLUs then keep for free."""
        return LowMemoryBackward() if images.is_cuda and not self.train_all else nullcontext()
