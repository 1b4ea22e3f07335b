"""EATA: ETA, and a penalty on moving the weights that mattered on source images (Niu et al., ICML 2022)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.method import Learner, register
from resitta.methods.eta import ETA, PAPER, PRESETS, ETALearner
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.settings import setting
from resitta.training.network import Network
from resitta.training.optimizer import SGD
from resitta.training.source_statistics import Source, SourceStatistics


@register("eata")
@dataclass(frozen=True, kw_only=True)
class EATA(ETA):
    """ETA with a penalty on moving the weights that mattered on source images; needs clean images.

    The Fisher information of a weight says how much it matters: the mean over source batches of the squared gradient
    of the batch's mean cross entropy with its own predictions. It falls with the size of these batches, which should
    therefore be that of the stream's.
    """

    title: ClassVar[str] = "EATA"
    paper: ClassVar[str] = PAPER
    without_source: ClassVar[str] = "eta"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {**values, "beta": 2000.0 if values["optimizer"] == "sgd" else 1.0} for name, values in PRESETS.items()
    }

    beta: float = setting(2000.0, at_least=0, doc="β, weight of the penalty")
    source: Source = setting(None, doc="clean images, or a file of `resitta prepare`")

    def prepare(self, network: Network, batches: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return the Fisher information of each weight that trains."""
        twin = network.fork("affine").with_bn(BatchStatisticsBN)
        return fisher_information(twin, batches)

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        assert isinstance(self.source, SourceStatistics)  # an adapter sees to it
        first = dict(network.fork("affine").with_bn(BatchStatisticsBN).named_parameters())
        fisher = [self.source.tensors[name].to(parameter) for name, parameter in first.items()]
        return ETALearner(self, network, FisherPenalty(self.beta, fisher, list(first.values())))


def fisher_information(network: Network, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """F, by parameter: the mean over batches of the squared gradient of the batch's mean CE(f(x), argmax f(x))."""
    named = dict(network.named_parameters())
    squares = {name: torch.zeros_like(parameter.detach()) for name, parameter in named.items()}
    optimizer, count = SGD(named.values(), lr=1.0), 0
    for images in batches:
        logits = network(images)
        gradients = optimizer.gradients(F.cross_entropy(logits, logits.argmax(dim=1)))
        for total, gradient in zip(squares.values(), gradients, strict=bool(named)):
            if gradient is not None:
                total.add_(gradient.square())
        count += 1
    return {name: total.detach() / max(1, count) for name, total in squares.items()}


class FisherPenalty(nn.Module):
    """β Σ F (θ - θ0)², with θ0 the source's parameters.

    >>> FisherPenalty(10.0, [torch.tensor([2.0])], [torch.tensor([1.0])])([torch.tensor([1.5])])
    tensor(5.)
    """

    def __init__(self, beta: float, fisher: list[Tensor], first: list[Tensor]) -> None:
        super().__init__()
        self.beta = beta
        for number, (weight, value) in enumerate(zip(fisher, first, strict=True)):
            self.register_buffer(f"fisher_{number}", weight.detach().clone(), persistent=False)
            self.register_buffer(f"first_{number}", value.detach().clone(), persistent=False)

    def forward(self, parameters: Iterable[Tensor]) -> Tensor | float:
        """Return the penalty of parameters."""
        kept = list(self.buffers())
        moved = zip(parameters, kept[::2], kept[1::2], strict=True)
        return self.beta * sum((fisher * (p - first).square()).sum() for p, fisher, first in moved)
