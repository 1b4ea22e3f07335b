"""Literal references of ROID, CMF and UnMix-TNS on the small test network: loops, float64, BatchNorm written out."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Normalize = Callable[[int, Tensor], Tensor]


class HandNetwork:
    """The small network's layers as plain arithmetic; `theta` holds the weights and biases of its two BatchNorms."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).double()
        self.bn: list[nn.BatchNorm2d] = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        self.theta = [p.detach().clone().requires_grad_() for bn in self.bn for p in (bn.weight, bn.bias)]

    def __call__(self, images: Tensor, *, follow: bool = False) -> Tensor:
        first, second, head = (m for m in self.model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
        x = F.conv2d(images, first.weight.detach(), padding=1)
        x = F.conv2d(self.batch_norm(0, x, follow).relu(), second.weight.detach(), stride=2)
        x = self.batch_norm(1, x, follow).relu().mean((2, 3))
        return x @ head.weight.detach().T + head.bias.detach()  # type: ignore[union-attr]

    def batch_norm(self, layer: int, x: Tensor, follow: bool) -> Tensor:
        gamma, beta = self.theta[2 * layer : 2 * layer + 2]
        normal = self.normal(layer, x, follow)
        return normal * gamma[None, :, None, None] + beta[None, :, None, None]

    def normal(self, layer: int, x: Tensor, follow: bool) -> Tensor:
        """Batch statistics."""
        count = x.numel() // x.shape[1]
        mean = x.sum((0, 2, 3), keepdim=True) / count
        var = (x - mean).pow(2).sum((0, 2, 3), keepdim=True) / count
        return (x - mean) / (var + self.bn[layer].eps).sqrt()


class HandUnMix(HandNetwork):
    """The same with UnMix-TNS, sample by sample and component by component."""

    def __init__(self, model: nn.Module, *, components: int, rate: float, seed: int) -> None:
        super().__init__(model)
        self.rate, generator = rate, torch.Generator().manual_seed(seed)
        self.m, self.v = [], []
        for bn in self.bn:
            assert bn.running_mean is not None
            assert bn.running_var is not None
            noise = torch.randn(components, bn.num_features, dtype=torch.float64, generator=generator)
            scale = (0.5 * components / (components - 1)) ** 0.5
            self.m.append([bn.running_mean + scale * bn.running_var.sqrt() * xi for xi in noise])
            self.v.append([0.5 * bn.running_var for _ in noise])

    def normal(self, layer: int, x: Tensor, follow: bool) -> Tensor:
        m, v = self.m[layer], self.v[layer]
        new_m, new_v = [one.clone() for one in m], [one.clone() for one in v]
        rows = []
        for sample in x:
            values = sample.flatten(1)
            mean = values.sum(1) / values.shape[1]
            var = (values - mean[:, None]).pow(2).sum(1) / values.shape[1]
            mu = mean.detach()
            cosines = [float(mu @ one / (mu.norm() * one.norm())) for one in m]
            total = sum(math.exp(c / 0.07) for c in cosines)
            p = [math.exp(c / 0.07) / total for c in cosines]
            mixed_m = [(1 - q) * one + q * mean for q, one in zip(p, m, strict=True)]
            mixed_v = [(1 - q) * one + q * var for q, one in zip(p, v, strict=True)]
            center = sum(mixed_m) / len(m)
            spread = sum(mixed_v) / len(m) + sum(one**2 for one in mixed_m) / len(m) - center**2
            rows.append((sample - center[:, None, None]) / (spread + self.bn[layer].eps).sqrt()[:, None, None])
            for k, q in enumerate(p):
                new_m[k] += self.rate / len(x) * q * (mu - m[k])
                new_v[k] += self.rate / len(x) * q * (var.detach() - v[k])
        if follow:
            self.m[layer], self.v[layer] = new_m, new_v
        return torch.stack(rows)


class HandROID:
    """ROID, sample by sample, with a view that is free of chance; `kalman` makes it CMF."""

    def __init__(self, network: HandNetwork, view: Callable[[Tensor], Tensor], **settings: Any) -> None:
        self.network, self.view = network, view
        known: dict[str, Any] = {
            "lr": 1e-3,
            "batch_size": 64,
            "prior": "logits",
            "sgd": False,
            "kalman": False,
            "q": 0.005,
        }
        known |= {"alpha": 0.99, "gamma": 0.99}
        self.set = {**known, **settings}
        lr, theta = self.set["lr"], network.theta
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(theta, lr=lr, betas=(0.9, 0.999))
        if self.set["sgd"]:
            self.optimizer = torch.optim.SGD(theta, lr=lr, momentum=0.9, nesterov=True)
        self.source = [p.detach().clone() for p in theta]
        self.hidden = [p.detach().clone() for p in theta]
        self.variance, self.average = 0.0, torch.full((5,), 1 / 5, dtype=torch.float64)
        self.kept: list[int] = []

    def __call__(self, images: Tensor) -> Tensor:
        z = self.network(images, follow=True)
        p = [row.softmax(0) for row in z.detach()]
        d = self.scaled([1 - float(self.average @ q / (self.average.norm() * q.norm())) for q in p])
        e = self.scaled([float((q * q.log()).sum()) for q in p])
        self.average = 0.9 * self.average + 0.1 * torch.stack(p).sum(0) / len(p)
        kept = [i for i in range(len(p)) if d[i] >= sum(d) / len(d)]
        self.kept.append(len(kept))
        views = self.network(self.view(images[kept]), follow=True)
        loss = torch.zeros((), dtype=torch.float64)
        for place, i in enumerate(kept):
            loss = loss + math.exp(3 * d[i] * e[i]) * self.loss(z[i], views[place]) / self.set["batch_size"]
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            self.ensemble()
        return self.corrected(z.detach())

    @staticmethod
    def scaled(values: list[float]) -> list[float]:
        low, high = min(values), max(values)
        return [(value - low) / (high - low) if high > low else 0.0 for value in values]

    @staticmethod
    def loss(z: Tensor, other: Tensor) -> Tensor:
        p, q = z.softmax(0), other.softmax(0)
        clipped = [one if one < 0.99 else torch.tensor(0.99).double() for one in p]
        likelihood = -sum(c * (c / (1 - c) + 1e-5).log() for c in clipped)
        symmetric = -sum(a * b.log() + b * a.log() for a, b in zip(p, q, strict=True)) / 2
        return torch.as_tensor(likelihood + symmetric)

    def ensemble(self) -> None:
        alpha, gamma = self.set["alpha"], self.set["gamma"]
        if not self.set["kalman"]:
            for p, s in zip(self.network.theta, self.source, strict=True):
                p.copy_(alpha * p + (1 - alpha) * s)
            return
        q = self.set["q"] * sum(p.numel() for p in self.source) / 38400
        self.variance = alpha**2 * self.variance + q
        share = (1 - q) / (self.variance + 1 - q)
        share = 0.89 if share < 0.89 else 1.0 if share >= 0.9999 else share
        self.variance *= share
        for p, s, h in zip(self.network.theta, self.source, self.hidden, strict=True):
            h.copy_(alpha * h + (1 - alpha) * s)
            h.copy_(share * h + (1 - share) * p)
            p.copy_(gamma * p + (1 - gamma) * h)

    def corrected(self, z: Tensor) -> Tensor:
        p = z.softmax(1)
        prior = p.mean(0)
        s = max(1 / len(z), 1 / 5) / float(prior.max())
        weights = (prior + s) / (1 + 5 * s)
        if self.set["prior"] == "logits":
            return z * weights
        weighted = p * weights
        return (weighted / weighted.sum(1, keepdim=True)).log() if self.set["prior"] == "probability" else z
