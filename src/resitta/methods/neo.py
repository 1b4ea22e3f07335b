"""NEO: move the mean of the features to the origin (Murphy, Danilowski, Chatterjee, Ghosh, ICLR 2026)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.settings import setting
from resitta.training.features import find_head, head_of
from resitta.training.network import Network, Trained


@register("neo")
@dataclass(frozen=True, kw_only=True)
class NEO(Method):
    """Re-centring: the running mean of the features is subtracted before the head; no gradients.

    Needs a linear head. The mean is that of all features before the batch at hand, so the first batch is predicted as
    by the source, and any size of batch will do. The source's mean cannot be had without source images, so nothing
    takes the place of what is subtracted: as in the paper, features of the source are taken to lie around the origin.
    That holds best where features have both signs, as in a ViT.

    The mean needs images of many classes: on a stream whose neighbours share a class, the first ones mislead it.
    `rate`: for streams whose domain changes, a batch counts at least this much, so that older ones are forgotten.
    """

    title: ClassVar[str] = "NEO"
    trains: ClassVar[Trained] = "none"
    needs: ClassVar[Needs] = "nothing"
    paper: ClassVar[str] = (
        "Murphy, Danilowski, Chatterjee, Ghosh. NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering. "
        "ICLR 2026."
    )

    rate: float | None = setting(
        None, above=0, at_most=1, doc="EMA rate of the mean, per batch; none weighs all images alike"
    )
    head: str | None = setting(None, doc="the head's name; none is the last Linear or 1×1 convolution to run")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return NEOLearner(self, network)


class NEOLearner(Learner):
    """The frozen source network, and the mean of its logits.

    A linear head W h + b gives W (h - μ) + b = z - (z̄ - b) for logits z whose mean is z̄: features need not be kept.
    """

    mean: Tensor
    count: Tensor

    def __init__(self, method: NEO, network: Network) -> None:
        super().__init__()
        self.rate = method.rate or 0.0
        self.network = network.fork()
        self.head = find_head(self.network, method.head)
        bias = head_of(self.network, self.head).bias
        self.register_buffer("mean", bias.to(torch.promote_types(bias.dtype, torch.float32)).clone())
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=bias.device))

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of the re-centred features."""
        return self.recentred(self.network.predict(images))

    def recentred(self, logits: Tensor) -> Tensor:
        """Logits z less z̄ - b."""
        shift = self.mean - head_of(self.network, self.head).bias.to(self.mean)
        return (logits - shift).to(logits.dtype)

    def step(self, images: Tensor) -> Tensor:
        """Predict, then let the mean follow."""
        logits = self.network.predict(images)
        found = self.recentred(logits)
        self.follow(logits)
        self.updates += 1
        return found

    @graphed
    @torch.no_grad()
    def follow(self, logits: Tensor) -> Tensor:
        """Move the mean by the share of the batch in all images, or by `rate` if that is more; return it."""
        share = (len(logits) / self.count.add_(len(logits)).to(self.mean)).clamp(min=self.rate)
        return self.mean.lerp_(logits.to(self.mean).mean(dim=0), share)
