"""Many streams, one adaptation: ranks of torch.distributed adapt together, as if one process saw all their samples.

Each rank predicts a stream of its own, say of one camera, and fills a bank of its own. Updates are common: statistics
and loss are those of the union of all banks. So all ranks hold the same networks after every update, and any rank's
snapshot serves all.

    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=30))
    adapter = resitta.adapt(model, "resitta", group="world")
    for images in camera:
        logits = adapter(images)
    finish(adapter)

A rank is ready for update n after n·`update_every` samples of its own, and then waits for the others; between updates
no rank waits. A rank whose stream ends calls `finish`, and takes part without samples until all streams have ended. If
a rank dies, or is missing longer than the timeout of `init_process_group`, the others raise `GroupFailure` and are left
as before the update. They can still predict with `adapter.paused()`, and save; to continue learning, restart all ranks
from one rank's last snapshot.
"""

import hashlib
import json
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from resitta.accel.cuda_graphs import CudaGraphs
from resitta.bench.record import settings_of
from resitta.errors import BadSetting, GroupFailure
from resitta.method import AdapterLike
from resitta.norm.bn_layers import BatchStatisticsBN, batch_moments
from resitta.training.optimizer import Gradients
from resitta.training.self_training import LocalReduction, SelfTraining


@runtime_checkable
class SelfTrainingLearner(Protocol):
    """A learner that can share its updates: a teacher and a student that train on a memory."""

    networks: SelfTraining
    replay: CudaGraphs
    updates: int

    def update(self) -> None:
        """Adapt once to what is in the memory."""


def join(adapter: AdapterLike, group: dist.ProcessGroup | Literal["world"]) -> None:
    """Share an adapter's updates with all ranks of a process group. Every rank must call it."""
    learner = _sharing(adapter)
    if not dist.is_available() or not dist.is_initialized():
        raise BadSetting("group= needs torch.distributed; call torch.distributed.init_process_group first")
    if group != "world" and not isinstance(group, dist.ProcessGroup):
        raise BadSetting(f"group must be 'world' or a process group of torch.distributed, found {group!r}")
    process_group = None if group == "world" else group
    if dist.get_world_size(process_group) > 1:  # alone, the plain union does it, bit for bit
        learner.networks.reduction = union = GroupReduction(learner, process_group)
        learner.replay.enabled = False  # a recorded update could neither wait for the others nor miss them
        union.compare(_digest(adapter))


def finish(adapter: AdapterLike) -> None:
    """Mark this rank's stream as ended, and take part in the others' updates until theirs have ended, too.

    >>> import tempfile, resitta
    >>> from resitta.conformance import tiny_network
    >>> dist.init_process_group("gloo", f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
    >>> adapter = resitta.adapt(tiny_network(), "resitta", group="world")
    >>> adapter(torch.rand(64, 3, 16, 16)).shape
    torch.Size([64, 5])
    >>> finish(adapter)
    >>> dist.destroy_process_group()
    """
    learner = _sharing(adapter)
    union = learner.networks.reduction
    if isinstance(union, GroupReduction):
        union.ended = True
        with adapter.lock, torch.inference_mode(False), torch.enable_grad():
            while not union.all_ended:
                with adapter.rollback.unless_complete():
                    learner.update()


class GroupReduction(LocalReduction):
    """Reduces over the union of the samples of all ranks.

    `all_reduce` is the only collective: each rank puts its values into its own row of a zero matrix, and sums them.
    """

    def __init__(self, learner: SelfTrainingLearner, process_group: dist.ProcessGroup | None) -> None:
        self.learner = learner
        self.process_group = process_group
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.ended = self.all_ended = False
        self.own = self.all = 0
        """How many samples this rank and all ranks bring to the update under way."""

    def begin(self, samples: Tensor) -> Tensor | None:
        """Exchange the sizes of all ranks; one without samples computes with a black image of weight zero."""
        network = self.learner.networks.teacher
        self.own = 0 if self.ended else len(samples)
        shape = samples.shape[1:] if self.own else (0, 0, 0)
        rows = self.exchange(torch.tensor([self.own, self.ended, self.learner.updates, *shape], device=network.device))
        _same(rows[:, 2].tolist(), "another number of updates", "load one snapshot on all ranks, or reset all")
        self.all, self.all_ended = int(rows[:, 0].sum()), bool(rows[:, 1].all())
        if self.all == 0:
            return None
        if self.own:
            return samples
        known = rows[rows[:, 0].argmax(), 3:].tolist()
        return torch.zeros((1, *map(int, known)), device=network.device, dtype=network.dtype)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the union: μ = Σ n_r μ_r / n and σ² = Σ n_r (σ²_r + (μ_r - μ)²) / n."""
        channels = x.shape[1]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.own:
            mean, var = batch_moments(x)
        else:  # zeros, yet part of the graph: the backward pass has collectives too
            mean = var = x[:0].sum([axis for axis in range(x.ndim) if axis != 1])
        count = mean.new_tensor([x.numel() / channels if self.own else 0.0])
        rows = self.exchange(torch.cat((mean, var, count)))
        means, variances, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1:]
        share = counts / counts.sum()
        mean = (share * means).sum(0)
        return mean, (share * (variances + (means - mean).square())).sum(0)

    def mean(self, losses: Tensor) -> Tensor:
        """The union's mean, so that all ranks agree whether it is finite; its gradient is that of the own share."""
        share = (losses if self.own else losses[:0]).sum() / self.all
        return share + (self.total(share) - share).detach()

    def add_gradients(self, gradients: Gradients) -> Gradients:
        """Sum the gradients of the shares, all in one message."""
        trained = list(self.learner.networks.student.parameters())
        own = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, gradients, strict=True)]
        summed = self.total(torch.cat([gradient.flatten() for gradient in own]))
        parts = summed.split_with_sizes([parameter.numel() for parameter in trained])
        return [part.view(parameter.shape) for parameter, part in zip(trained, parts, strict=True)]

    def compare(self, digest: int) -> None:
        """Refuse ranks with another model or method."""
        rows = self.exchange(torch.tensor([digest], device=self.learner.networks.teacher.device))
        advice = "give all ranks the same weights, method and settings"
        _same(rows[:, 0].tolist(), "another model or method", advice)

    def exchange(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, one row each; differentiable."""
        own = torch.arange(self.size, device=values.device).unsqueeze(1) == self.rank
        return _Total.apply(torch.where(own, values, torch.zeros_like(values)), self)  # type: ignore[no-any-return, no-untyped-call]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        summed = values.detach().clone()
        try:
            dist.all_reduce(summed, group=self.process_group)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            what = f"rank {self.rank} of {self.size} lost the others in update {self.learner.updates + 1} ({reason})"
            advice = "one has died, or its stream stands still; restart all ranks from one's last snapshot"
            raise GroupFailure(f"{what}: {advice}") from error
        return summed


class _Total(torch.autograd.Function):
    """The sum over all ranks; its gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: GroupReduction) -> Tensor:
        ctx.group = group
        return group.total(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.group.total(gradients[0]), None


def _sharing(adapter: AdapterLike) -> SelfTrainingLearner:
    """Refuse methods whose updates cannot be shared."""
    learner: object = adapter.learner
    on_batches = any(isinstance(layer, BatchStatisticsBN) for layer in adapter.learner.modules())
    if not isinstance(learner, SelfTrainingLearner) or on_batches:
        needed = "the statistics and the update must be those of a memory, not of each batch"
        raise BadSetting(f"{adapter.method.name} cannot adapt as a group: {needed}. Use method='resitta' or 'rotta'.")
    if learner.networks.micro_batch is not None:
        raise BadSetting("a group learns from each bank as a whole; leave out micro_batch")
    if getattr(learner, "shift", None) is not None:
        raise BadSetting("the streams of a group turn to other domains at different times; leave out reset_on_shift")
    return learner


def _digest(adapter: AdapterLike) -> int:
    """A number for everything that must be the same on all ranks."""
    method, precision = adapter.method, adapter.options.precision
    text = json.dumps([method.name, settings_of(method), precision, adapter.fingerprint.content])
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def _same(values: list[int], what: str, advice: str) -> None:
    """Refuse ranks that differ from rank 0."""
    for rank, value in enumerate(values):
        if value != values[0]:
            raise GroupFailure(f"rank {rank} has {what} than rank 0; {advice}")
