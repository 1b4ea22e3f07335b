"""ROID: weighted self-training that stays near the source, and prior correction (Marsden et al., WACV 2024)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from resitta.accel.cuda_graphs import CudaGraphs
from resitta.accel.graph_pairs import GraphPairs
from resitta.accel.varying_sizes import varying_sizes
from resitta.method import Learner, Method, Needs, register
from resitta.norm.choice import BATCH_SIZE, COMPONENTS, FULL_BATCH, NORM, Norm, chosen_norm
from resitta.norm.unmix_bn import updating_components
from resitta.settings import setting
from resitta.training.entropy import log_probabilities
from resitta.training.network import Network
from resitta.training.optimizer import SGD, Adam, Optimizer
from resitta.training.prior_correction import PriorCorrection, prior_corrected
from resitta.training.self_training import Anchor
from resitta.training.sliding_window import SlidingWindow
from resitta.training.soft_likelihood import follow, sample_weights, soft_likelihood_ratio
from resitta.training.split_gradient import descend, partial_gradient
from resitta.training.strong_view import StrongView, View

COUNTS = 64
"""For how many numbers of kept samples the second pass is recorded as a CUDA graph."""


@dataclass(frozen=True, kw_only=True)
class WeightedSelfTraining(Method):
    """What ROID and CMF have in common."""

    needs: ClassVar[Needs] = "norm"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {},
        "cifar100": {},
        "imagenet": {"optimizer": "sgd", "lr": 2.5e-4, "full_batch": 16},
    }

    lr: float = setting(1e-3, above=0, doc="learning rate; with UnMix-TNS its authors take 1e-5, on ImageNet 2.5e-6")
    optimizer: Literal["adam", "sgd"] = setting("adam", doc="Adam, or SGD with Nesterov's momentum of .9")
    tau: float = setting(1 / 3, above=0, doc="τ, temperature of the weights")
    beta: float = setting(0.9, at_least=0, at_most=1, doc="EMA momentum of the mean prediction")
    prior_correction: PriorCorrection = setting(
        "logits",
        doc="by the batch's prior: of logits as in the authors' code, of probabilities as in the paper, or none",
    )
    window: int = setting(1, at_least=1, doc="images that count as a batch when they come one at a time")
    strong_view: View | None = setting(None, doc="augmentation, images -> images in [0, 1]; none is the paper's")
    per_sample: bool = setting(False, doc="draw the augmentation for each image, not once per batch")
    norm: Norm = setting("batch", doc=NORM)
    components: int = setting(16, at_least=1, doc=COMPONENTS)
    batch_size: int = setting(64, at_least=1, doc=BATCH_SIZE)
    full_batch: int = setting(64, at_least=1, doc=FULL_BATCH)


@register("roid")
@dataclass(frozen=True, kw_only=True)
class ROID(WeightedSelfTraining):
    """Weigh certain and diverse samples more, keep weights near the source, correct outputs by a batch's prior.

    Settings as its authors' code has them. Their losses are sums divided by the configured `batch_size`.

    The prior correction uses the order of the stream. `prior_correction="none"` is the method without it: report both.

    In the second pass a BatchNorm layer sees the samples that are kept, and only those. With `norm="unmix"` both passes
    of a step move the components of UnMix-TNS.

    With `window` above 1 an image that comes alone is predicted as the last of a batch of the latest `window` images,
    and one update follows every `window` images. With 1 it is a batch by itself.
    """

    title: ClassVar[str] = "ROID"
    paper: ClassVar[str] = (
        "Marsden, Döbler, Yang. Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and "
        "Prior Correction. WACV 2024."
    )

    alpha: float = setting(0.99, at_least=0, at_most=1, doc="α, weight of the trained weights beside the source's")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return ROIDLearner(self, network, generator, partial(Anchor, pull=1 - self.alpha))


def symmetric_cross_entropy(logits: Tensor, others: Tensor) -> Tensor:
    """s = -½ Σ p log p' - ½ Σ p' log p of each row; gradients flow through both.

    >>> symmetric_cross_entropy(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor([0.6931])
    """
    log_p, log_q = log_probabilities(logits), log_probabilities(others)
    return -(log_p.exp() * log_q + log_q.exp() * log_p).sum(dim=1) / 2


class ROIDLearner(Learner):
    """One network that trains on every batch it predicts, and what keeps it near the source."""

    mean_prediction: Tensor

    def __init__(
        self,
        method: WeightedSelfTraining,
        network: Network,
        generator: torch.Generator,
        ensemble: Callable[[Iterable[Tensor]], nn.Module],
    ) -> None:
        super().__init__()
        self.method = method
        self.network = network.fork("affine", channels_last=True).with_bn(chosen_norm(method, generator))
        self.optimizer = self._optimizer()
        self.ensemble = ensemble(self.network.parameters())
        self.window = SlidingWindow(method.window)
        self.passes = GraphPairs()
        self.replay = CudaGraphs(most=COUNTS, warm_up=1)  # cuDNN's rules choose the same kernels every time
        self.view = method.strong_view or StrongView(generator, per_sample=method.per_sample, sharp=True)
        precision = torch.promote_types(network.dtype, torch.float32)
        uniform = torch.full((network.classes,), 1 / network.classes, dtype=precision, device=network.device)
        self.register_buffer("mean_prediction", uniform)

    def _optimizer(self) -> Optimizer:
        parameters, lr = self.network.parameters(), self.method.lr
        if self.method.optimizer == "sgd":
            return SGD(parameters, lr=lr, momentum=0.9, nesterov=True)
        return Adam(parameters, lr=lr)

    def predict(self, images: Tensor) -> Tensor:
        """Return the corrected logits."""
        return self.corrected(self.network.predict(self.window.joined(images)))[-len(images) :]

    def corrected(self, logits: Tensor) -> Tensor:
        """Weigh the logits of a batch by its prior."""
        return prior_corrected(logits, self.method.prior_correction)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and learn from these predictions."""
        batch = self.window.joined(images)
        if self.window.takes(images) and not self.window.add(images):
            return self.corrected(self.network.predict(batch))[-1:]
        logits = self.learn(batch)
        self.updates += 1
        return self.corrected(logits)[-len(images) :]

    def learn(self, images: Tensor) -> Tensor:
        """One step on the kept samples; return the logits of all, from before it.

        How many are kept is known on the host only: it is asked for once. Hence CUDA graphs are recorded of the first
        pass, of the second one for each number of samples, and of the backward pass of the first one with the step. All
        images are augmented before, while a device still computes their logits.
        """
        if not self.network.answers.knows(images.shape, channels_last=self.network.channels_last):
            self.network.predict(images)  # finds out which layout works
        (logits, weights, kept), finish = self.passes(self.first_pass, self.descend, images)
        augmented = self.network.augment(images, self.view)
        rows = kept.nonzero().squeeze(1)
        finish(self.replay(self.second_pass, augmented, rows, logits, weights))
        self.ensemble(self.network.parameters())
        return logits.clone()

    def first_pass(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits with their autograd graph, the weights of the samples, and which are kept; c̄ follows."""
        with updating_components(self.network):
            logits = self.network(images)
        seen = _precise(logits.detach())
        weights, kept = sample_weights(seen, self.mean_prediction, self.method.tau)
        follow(self.mean_prediction, seen, self.method.beta)
        return logits, weights, kept

    def second_pass(self, augmented: Tensor, rows: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
        """The loss on the kept samples and what follows from it without the first pass: see `partial_gradient`.

        ℓ = Σ w (soft likelihood ratio + symmetric cross-entropy with the view) / B.
        """
        leaf = logits.detach().requires_grad_()
        seen = _precise(leaf).index_select(0, rows)
        with updating_components(self.network), varying_sizes():
            views = self.network(augmented.index_select(0, rows)).to(seen.dtype)
            losses = soft_likelihood_ratio(seen) + symmetric_cross_entropy(seen, views)
            loss = (weights.index_select(0, rows) * losses).sum() / self.method.batch_size
            return partial_gradient(loss, leaf, self.optimizer.trained)

    def descend(self, logits: Tensor, partial: Tensor) -> Tensor:
        """One step down the gradient of both passes; return the loss."""
        return descend(self.optimizer, logits, partial)


def _precise(logits: Tensor) -> Tensor:
    """The logits in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
