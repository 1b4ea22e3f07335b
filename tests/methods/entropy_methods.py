"""What the tests of entropy methods share: networks with two kinds of norm layers, and entropies written out."""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def network(kind: str, classes: int = 5) -> nn.Module:
    """A small float64 network with four norm layers, of "batch" or of "group and layer" normalisation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for channels in ((3, 8), (8, 8), (8, 12), (12, 12)):
            norm = nn.BatchNorm2d(channels[1]) if kind == "batch" else nn.GroupNorm(2, channels[1])
            layers += [nn.Conv2d(*channels, 3, padding=1, bias=False), norm, nn.ReLU()]
        last = nn.Identity() if kind == "batch" else nn.LayerNorm(12)
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last, nn.Linear(12, classes)).double()
        for _ in range(10):
            model(torch.rand(32, 3, 10, 10).double() * 2 - 0.5)
        head = model[-1]
        assert isinstance(head, nn.Linear)
        with torch.no_grad():  # predictions of several classes, some of them certain
            head.weight.mul_(40 if kind == "batch" else 12)
            head.bias.sub_(literal_twin(model)(torch.cat([*batches()])).mean(0))
    return model.eval()


def literal_twin(model: nn.Module) -> nn.Module:
    """A copy in training mode, which moves no running statistics."""
    twin = copy.deepcopy(model).train()
    for module in twin.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    return twin


def norm_parameters(model: nn.Module, layers: int | None = None) -> list[nn.Parameter]:
    """The weights and biases of the first so many norm layers."""
    found = [module for module in model.modules() if isinstance(module, NORMS)][:layers]
    return [parameter for layer in found for parameter in (layer.weight, layer.bias)]


def entropies_of(logits: Tensor) -> Tensor:
    """-Σ p ln p of each row."""
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def certain(logits: Tensor, factor: float = 0.4) -> list[int]:
    """The rows whose entropy is below a part of ln C."""
    limit = factor * math.log(logits.shape[1])
    return [row for row, value in enumerate(entropies_of(logits).tolist()) if value < limit]


def batches(n: int = 512, size: int = 32) -> Iterator[Tensor]:
    """Float64 images whose brightness and tint drift; many predictions are certain and many are not."""
    generator = torch.Generator().manual_seed(1)
    base = torch.rand(n, 3, 10, 10, generator=generator)
    shade = torch.linspace(0.2, 0.9, n).view(-1, 1, 1, 1)
    tint = torch.rand(n, 3, 1, 1, generator=generator)
    yield from torch.split((base * shade * 0.6 + tint * 0.4).double(), size)


class LiteralETA:
    """EATA and its relatives, sample by sample, as the specification says."""

    def __init__(
        self, kind: str, optimizer: str, *, epsilon: float, margin: float = 0.4, fisher: list[Tensor] | None = None
    ) -> None:
        self.model = literal_twin(network(kind))
        self.trained = norm_parameters(self.model)
        self.first = [parameter.detach().clone() for parameter in self.trained]
        self.kind, self.epsilon, self.margin, self.fisher = optimizer, epsilon, margin, fisher
        self.kept: list[int] = []
        self.begin()

    def begin(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.trained, self.first, strict=True):
                parameter.copy_(value)
        self.mean: Tensor | None = None
        sgd, adam = torch.optim.SGD, torch.optim.Adam
        chosen = sgd(self.trained, lr=0.01, momentum=0.9) if self.kind == "sgd" else adam(self.trained, lr=0.01)
        self.optimizer: torch.optim.Optimizer = chosen

    def step(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        p, entropies = logits.softmax(1), entropies_of(logits)
        kept = [
            row for row in certain(logits, self.margin) if self.mean is None or abs(self.cosine(p[row])) < self.epsilon
        ]
        self.kept.append(len(kept))
        if kept:
            mean = sum(p[row].detach() for row in kept) / len(kept)
            assert isinstance(mean, Tensor)
            self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
            limit = self.margin * math.log(5)
            loss = sum(math.exp(limit - entropies[row].item()) * entropies[row] for row in kept) / len(kept)
            for parameter, first, weight in zip(self.trained, self.first, self.fisher or (), strict=False):
                loss = loss + 3.0 * (weight * (parameter - first) ** 2).sum()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            self.optimizer.step()
        return logits.detach()

    def cosine(self, p: Tensor) -> float:
        assert self.mean is not None
        p = p.detach()
        return float((self.mean * p).sum() / (self.mean.norm() * p.norm()))
