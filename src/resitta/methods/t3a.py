"""T3A: the head's weights make room for averages of features seen (Iwasawa and Matsuo, NeurIPS 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.method import Learner, Method, Needs, graphed, register
from resitta.settings import setting
from resitta.training.entropy import entropy
from resitta.training.features import find_head, head_of, with_features
from resitta.training.network import Network, Trained


@register("t3a")
@dataclass(frozen=True, kw_only=True)
class T3A(Method):
    """Template adjustment: a class is the mean direction of its certain features; no gradients.

    Needs a linear head. The images at hand are supports, too, so an answer depends on the batch. Logits are those of
    the paper: the length of a feature times its cosine with the template of a class. Their range is small and theirs
    alone, so that softmax gives other confidences than the source has: calibrate them before you use them as such.

    `filter_k`: the paper selects it with validation data from 1, 5, 20, 50, 100 and all; 100 is the largest bounded
    one. Supports need room for classes × filter_k features, which is why the preset `imagenet` has 20. None keeps all,
    in one sum per class; its authors' code writes -1, and loses a support of each class per batch.
    """

    title: ClassVar[str] = "T3A"
    trains: ClassVar[Trained] = "none"
    needs: ClassVar[Needs] = "nothing"
    paper: ClassVar[str] = (
        "Iwasawa, Matsuo. Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization. "
        "NeurIPS 2021."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {}, "cifar100": {}, "imagenet": {"filter_k": 20}}

    filter_k: int | None = setting(
        100, at_least=1, doc="M, supports of lowest entropy kept for a class; none keeps all"
    )
    head: str | None = setting(None, doc="the head's name; none is the last Linear or 1×1 convolution to run")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return T3ALearner(self, network)


def places(entropies: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Where new supports go so that each class keeps its K of lowest entropy: (row, whether it enters at all).

    `kept`: the C×K entropies of present supports, huge where there is none. The j-th most certain newcomer of a class
    takes the place of its j-th most uncertain support, if fewer than K supports and newcomers are as certain.

    >>> places(torch.tensor([0.1, 0.5, 0.3]), torch.tensor([0, 0, 0]), torch.tensor([[0.2, 0.4]]))
    (tensor([1, 0, 0]), tensor([ True, False, False]))
    """
    number = torch.arange(len(labels), device=labels.device)
    more = entropies[:, None] > entropies  # [i, k]: sample k is more certain than i, or as certain and earlier
    earlier = (entropies[:, None] == entropies) & (number[:, None] > number)
    rank = ((labels[:, None] == labels) & (more | earlier)).sum(dim=1)
    rivals = kept[labels]
    enters = rank + (rivals <= entropies[:, None]).sum(dim=1) < kept.shape[1]
    order = rivals.argsort(dim=1, descending=True, stable=True)
    return order.gather(1, rank.clamp(max=kept.shape[1] - 1)[:, None]).squeeze(1), enters


class Supports(nn.Module):
    """The K supports of lowest entropy of each class: directions of features, in tensors of a fixed size."""

    units: Tensor
    entropies: Tensor

    def __init__(self, weight: Tensor, size: int) -> None:
        super().__init__()
        self.classes, self.size = len(weight), size
        rows = self.classes * size + 1  # the last takes what is not kept, as zeros
        self.register_buffer("units", weight.new_zeros(rows, weight.shape[1]))
        self.register_buffer("entropies", weight.new_full((rows,), torch.finfo(weight.dtype).max))

    def sums_with(self, units: Tensor, labels: Tensor, entropies: Tensor, *, keep: bool) -> Tensor:
        """The C×D sums of supports with newcomers among them, for good or for this time only."""
        kept = self.entropies[:-1].view(self.classes, self.size)
        place, enters = places(entropies, labels, kept)
        rows = (labels * self.size + place).where(enters, self.classes * self.size)
        every = self.units if keep else self.units.clone()
        every.index_copy_(0, rows, units.where(enters[:, None], 0.0))
        if keep:
            self.entropies.index_copy_(0, rows, entropies.where(enters, torch.finfo(entropies.dtype).max))
        return every[:-1].view(self.classes, self.size, -1).sum(dim=1)


class AllSupports(nn.Module):
    """The sum of all supports of each class, which is all that a template needs."""

    sums: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros_like(weight))

    def sums_with(self, units: Tensor, labels: Tensor, entropies: Tensor, *, keep: bool) -> Tensor:
        """The C×D sums of supports with newcomers among them, for good or for this time only."""
        classes = torch.arange(len(self.sums), device=labels.device)
        sums = self.sums + (classes[:, None] == labels).to(units) @ units
        return self.sums.copy_(sums) if keep else sums


class T3ALearner(Learner):
    """The frozen source network, and the supports that stand in for its head."""

    def __init__(self, method: T3A, network: Network) -> None:
        super().__init__()
        self.network = network.fork()
        self.head = find_head(self.network, method.head)
        head = head_of(self.network, self.head)
        weight = head.weight.to(torch.promote_types(head.weight.dtype, torch.float32))
        self.supports = AllSupports(weight) if method.filter_k is None else Supports(weight, method.filter_k)
        self.templates(weight, head(head.weight), keep=True)  # the weights of the head are the first supports

    def predict(self, images: Tensor) -> Tensor:
        """Return z·template, with the images among the supports."""
        return self.try_on(images).clone()

    def step(self, images: Tensor) -> Tensor:
        """Return the same, and keep the supports."""
        logits = self.learn(images).clone()
        self.updates += 1
        return logits

    @graphed
    def try_on(self, images: Tensor) -> Tensor:
        """Predict without keeping anything."""
        return self.answer(images, keep=False)

    @graphed
    def learn(self, images: Tensor) -> Tensor:
        """Predict and keep."""
        return self.answer(images, keep=True)

    @torch.no_grad()
    def answer(self, images: Tensor, *, keep: bool) -> Tensor:
        """Return z·template for each class."""
        logits, features = with_features(self.network, images, self.head)
        templates = self.templates(features, logits, keep=keep)
        return (features.to(templates) @ templates.T).to(logits.dtype)

    def templates(self, features: Tensor, logits: Tensor, *, keep: bool) -> Tensor:
        """The C×D templates with a batch among the supports; zero for a class without any."""
        precision = torch.promote_types(features.dtype, torch.float32)
        features, logits = features.to(precision), logits.to(precision)
        sums = self.supports.sums_with(F.normalize(features, dim=1), logits.argmax(dim=1), entropy(logits), keep=keep)
        return F.normalize(sums, dim=1)
