"""COFA: average the features of neighbours in time; a part of UniTTA (Du et al., 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.training.network import Network, Trained


@register("cofa")
@dataclass(frozen=True, kw_only=True)
class COFA(Method):
    """Correlated feature adaptation: an image is averaged with the one before it where that is more certain.

    It uses the order of labels: neighbours in the stream must share their class more often than not, as in video or in
    sorted images, and the images must come in order, from one source. On a shuffled stream it gains nothing. It learns
    nothing else: the last image is all that is carried from batch to batch, and it works with single images.

    For a linear head, the logits of averaged features are the averaged logits, which are what is averaged here.
    """

    title: ClassVar[str] = "COFA"
    trains: ClassVar[Trained] = "none"
    needs: ClassVar[Needs] = "nothing"
    paper: ClassVar[str] = (
        "Du, Wang, Guo, Han, Zhou, Huang. UniTTA: Unified Benchmark and Versatile Framework Towards Realistic "
        "Test-Time Adaptation. 2024."
    )

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return COFALearner(network)


def averaged(logits: Tensor, last: Tensor) -> Tensor:
    """The mean of each row and the one before it where its softmax has the higher maximum, else the row.

    `last`: the row before the first.

    >>> averaged(torch.tensor([[0.0, 4.0], [3.0, 1.0]]), torch.tensor([0.0, 8.0]))
    tensor([[0., 6.],
            [3., 1.]])
    """
    means = (logits + torch.cat((last[None], logits[:-1]))) / 2
    surer = means.softmax(dim=1).amax(dim=1) > logits.softmax(dim=1).amax(dim=1)
    return means.where(surer[:, None], logits)


class COFALearner(Learner):
    """The frozen source network, and its logits for the last image; nothing is learned, so `updates` stays 0."""

    last: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.fork()
        precision = torch.promote_types(network.dtype, torch.float32)
        self.register_buffer("last", torch.zeros(network.classes, dtype=precision, device=network.device))

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits, averaged with those before where that is more certain; the last image stays the last."""
        return self.average(self.network.predict(images)).clone()

    def step(self, images: Tensor) -> Tensor:
        """Return the same, and carry the last image to the next batch."""
        logits = self.network.predict(images)
        found = self.average(logits).clone()
        self.last.copy_(logits[-1])
        return found

    @graphed
    def average(self, logits: Tensor) -> Tensor:
        """Average with the image before; the first of a stream has none, and zeros never make it more certain."""
        return averaged(logits.to(self.last), self.last).to(logits.dtype)
