"""Tide written out from the page of its formulas, sample by sample, on a sequential network in float64."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from tests.training.naive_change_points import NaiveChangePoints
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from resitta.memory.entrobank import EntroBank
from resitta.training.image_signature import image_signature
from resitta.training.mixed_domains import MixedDomains

Floats = NDArray[np.float64]
Moments = tuple[Tensor, Tensor]


class HandBN(nn.Module):
    """Keeps the first and second moments of every sample of the domain, by class."""

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.source: Moments = layer.running_mean.clone(), layer.running_var.clone()
        self.present = self.prior = self.source
        self.members: dict[int, list[tuple[Tensor, Tensor, float]]] = {}
        self.rows: list[int | None] = []
        self.weigh: Callable[[], tuple[dict[int, float], float, float]] | None = None
        self.by_group = self.own = False
        self.misfits: list[float] | None = None

    def forward(self, x: Tensor) -> Tensor:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        batch = x.mean(axes), x.var(axes, correction=0)
        if self.misfits is not None:
            mean, std = self.present[0], (self.present[1] + self.eps).sqrt()
            apart = ((batch[0] - mean) / std) ** 2 + ((batch[1] + self.eps).sqrt() / std - 1) ** 2
            self.misfits.append(float(apart.mean()))
        if self.weigh is not None:
            self.take(x.detach())
            if self.by_group:
                assert None not in self.rows
                own = [self.of_group(row) for row in self.rows if row is not None]
                return torch.cat([self.normalise(sample[None], *s) for sample, s in zip(x, own, strict=True)])
            self.present = self.mixture(self.weigh()[0])
        return self.normalise(x, *(batch if self.own else self.present))

    def take(self, x: Tensor) -> None:
        """Add the samples; if there were more than 2,048 before, these count less."""
        assert self.weigh is not None
        fade = min(1.0, 2048 / max(1.0, sum(self.count(row) for row in self.members)))
        self.members = {
            row: [(first, second, fade * share) for first, second, share in own] for row, own in self.members.items()
        }
        for sample, row in zip(x, self.rows, strict=True):
            if row is not None:
                values = sample.reshape(len(sample), -1)
                self.members.setdefault(row, []).append((values.mean(1), (values**2).mean(1), 1.0))

    def count(self, row: int) -> float:
        return sum(share for *_, share in self.members[row])

    def row(self, row: int) -> Moments:
        own, count = self.members[row], self.count(row)
        first = torch.stack([mean * share for mean, _, share in own]).sum(0) / count
        return first, torch.stack([square * share for _, square, share in own]).sum(0) / count

    def mixture(self, weights: dict[int, float]) -> Moments:
        """m = (S m_source + Σ_k w_k m_k) / (S + Σ_k w_k), of first and second moments."""
        assert self.weigh is not None
        return self.mixed(weights, self.credible(weights))

    def of_group(self, row: int) -> Moments:
        assert self.weigh is not None
        return self.mixed({row: self.count(row)}, self.weigh()[1])

    def mixed(self, weights: dict[int, float], strength: float) -> Moments:
        total = strength + sum(weights.values())
        mean = strength * self.prior[0] / total
        square = strength * (self.prior[1] + self.prior[0] ** 2) / total
        for row, weight in weights.items():
            first, second = self.row(row)
            mean, square = mean + weight / total * first, square + weight / total * second
        return mean, square - mean**2

    def credible(self, weights: dict[int, float]) -> float:
        """S = min(64, noise / (M - noise / W)), with the misfit M of the samples alone."""
        assert self.weigh is not None
        _, strength, noise = self.weigh()
        weight = sum(weights.values())
        if not weight:
            return strength
        mean, var = self.mixed(weights, 0.0)
        std = (self.prior[1] + self.eps).sqrt()
        apart = float(
            (((mean - self.prior[0]) / std) ** 2 + ((var.clamp(min=1e-8) + self.eps).sqrt() / std - 1) ** 2).mean()
        )
        shift = apart - noise / weight
        return min(strength, noise / shift) if shift > 0 else strength

    def normalise(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        shape = [1, -1] + [1] * (x.ndim - 2)
        out = (x - mean.view(shape)) / (var.view(shape) + self.eps).sqrt()
        return out * self.weight.view(shape) + self.bias.view(shape)


class HandBank(EntroBank):
    """Keeps the latest samples while labels are diverse."""

    diverse = False

    def admit(self, label: int, entropy: float) -> int | None:
        if self.diverse and self.size == self.capacity:
            return list(self.births).index(min(self.births))
        return super().admit(label, entropy)


def scaled(values: list[float]) -> list[float]:
    """To [0, 1]."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


@dataclass
class Domain:
    """What is kept of a domain that was left."""

    signature: Floats
    statistics: list[Moments]
    met: int


@dataclass
class HandTide:
    """The method on copies of a model, with the settings of its formulas."""

    model: nn.Module
    classes: int
    strength: float = 64.0
    noise: float = 1.6
    quota: float = 4.0
    ceiling: float = 96.0
    change_bound: float | None = 2.4
    domains: int = 16
    recall_bound: float = 1.0
    recalled_strength: float = 256.0
    groups: int = 4
    mirror: bool = True
    diversity: float = 0.6
    lr: float = 2.2e-3
    anchor: float = 0.01
    capacity: int = 64
    update_every: int = 64
    forget_age: int = 512
    mature_age: int = 128
    rejected: Callable[[Tensor], list[bool]] = lambda images: [False] * len(images)
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.net = copy.deepcopy(self.model)
        for name, layer in list(self.net.named_modules()):
            if isinstance(layer, _BatchNorm):
                self.net.set_submodule(name, HandBN(layer))
        self.layers = [module for module in self.net.modules() if isinstance(module, HandBN)]
        self.trained = [parameter for layer in self.layers for parameter in layer.parameters()]
        sizes = [float(scale) for layer in self.layers for scale in layer.weight.detach().abs()]
        step = sum(sizes) / len(sizes)
        self.adam = torch.optim.Adam(self.trained, lr=self.lr * step)
        self.mean = torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
        self.start = [parameter.detach().clone() for parameter in self.trained]
        self.bank = HandBank(
            self.capacity,
            generator=torch.Generator(),
            forget_age=self.forget_age,
            mature_age=self.mature_age,
        )
        self.changes, self.mixed = NaiveChangePoints(self.change_bound or math.inf), MixedDomains(self.groups)
        self.remembered: list[Domain] = []
        self.known: Domain | None = None
        self.is_new = True
        self.weight, self.seen, self.images, self.clock, self.met = self.strength, 0, 0, 0, 0
        self.credit, self.latest = 0.0, list[int]()
        self.evidence, self.shown = [0.0, 0.0, 0.0], 0

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            predicted: Tensor = self.net(images)
        labels = predicted.argmax(1).tolist()
        rejected = self.rejected(images)
        known = [i for i in range(len(images)) if not rejected[i]]
        rows = image_signature(images[known]).double().numpy()
        before, diverse = len(self.changes.found), self.diversity_of([labels[i] for i in known])
        found = self.changes.run(rows, diverse)[before:]
        later = known[max(0, found[-1][0] - self.images) :] if found else known
        first = later[0] if found else 0
        if found:
            self.enter(found[0], found[-1][0], images[later])
        elif self.is_new and len(self.changes.domain) >= 32:
            self.recall()
        if self.mixed(rows[len(known) - len(later) :]):
            self.counted["regrouped"] += 1
            self.remembered, self.known = [], None
            self.begin(afresh=not self.mixed.on)
        kept = [i >= first and not rejected[i] for i in range(len(images))]
        answer = self.answer(images, predicted, labels, kept, diverse > self.diversity)
        self.seen += len(images) - first
        self.images += len(known)
        self.learn_from(images, predicted, rejected, first, diverse)
        return answer

    def diversity_of(self, labels: list[int]) -> float:
        self.latest = [*self.latest, *labels][-64:]
        shares = [count / len(self.latest) for count in Counter(self.latest).values()]
        return math.exp(-sum(p * math.log(p) for p in shares)) / max(1, min(self.classes, len(self.latest)))

    def answer(self, images: Tensor, predicted: Tensor, labels: list[int], kept: list[bool], diverse: bool) -> Tensor:
        """Observe the batch; of each kept image, choose the prediction to return."""
        answer, n = predicted.clone(), len(images)
        if self.mixed.on:
            self.counted["by group"] += 1
            groups = self.mixed.group_of(image_signature(images)).tolist()
            newer = self.observed(images, groups, kept, by_group=True)
            mirrored, use = [False] * n, kept
        elif self.seen < self.strength:
            self.counted["new"] += 1
            newer, mirrored, use = self.observed(images, labels, kept), [False] * n, kept
        else:
            on = self.mirror_helps()
            mirrored = [self.mirror and (on or (self.shown + i) % 32 == 0) for i in range(n)]
            seen = torch.stack([image.flip(-1) if m else image for image, m in zip(images, mirrored, strict=True)])
            newer = self.observed(seen, labels, kept)
            if self.mirror:
                self.compare(predicted, newer, [m and k for m, k in zip(mirrored, kept, strict=True)])
            helps = self.mirror_helps()
            use = [k and (helps if m else diverse) for m, k in zip(mirrored, kept, strict=True)]
            self.counted.update(mirrored=sum(mirrored), plain=n - sum(mirrored), averaged=helps * sum(mirrored))
        for i in range(n):
            if use[i]:
                both = (predicted[i].log_softmax(0) + newer[i].log_softmax(0)) / 2
                answer[i] = both if mirrored[i] else newer[i]
        return answer

    def mirror_helps(self) -> bool:
        plain, mirrored, apart = self.evidence
        return apart <= (plain + mirrored) / 2 / 2 and mirrored <= 1.2 * plain

    def compare(self, predicted: Tensor, newer: Tensor, counts: list[bool]) -> None:
        """Sum up entropies and Jensen-Shannon divergences; images long ago count less."""
        for _ in counts:
            self.evidence = [value * (1 - 1 / 2048) for value in self.evidence]
        for one, other, counted in zip(predicted, newer, counts, strict=True):
            if counted:
                p, q = one.softmax(0), other.softmax(0)
                h = [float(-(r * r.log()).sum()) for r in (p, q, (p + q) / 2)]
                more = (h[0], h[1], h[2] - (h[0] + h[1]) / 2)
                self.evidence = [value + new for value, new in zip(self.evidence, more, strict=True)]
        self.shown += len(counts)

    def observed(self, images: Tensor, rows: list[int], kept: list[bool], *, by_group: bool = False) -> Tensor:
        for layer in self.layers:
            layer.rows = [row if k else None for row, k in zip(rows, kept, strict=True)]
            layer.weigh, layer.by_group = lambda: (self.weights(), self.weight, self.noise), by_group
        with torch.no_grad():
            newer: Tensor = self.net(images)
        if by_group:
            for layer in self.layers:
                layer.present = layer.mixture({row: layer.count(row) for row in layer.members})
        for layer in self.layers:
            layer.weigh, layer.by_group = None, False
        return newer

    def weights(self) -> dict[int, float]:
        """w_k = W min(n_k, 4) / Σ_j min(n_j, 4), 1/W = (1/P - 1/K) / 4 + 1 / min(N, 96), 1/P = Σ (n_k / N)²."""
        counts = {row: self.layers[0].count(row) for row in self.layers[0].members}
        if not counts:
            return {}
        n = sum(counts.values())
        alike = sum((count / n) ** 2 for count in counts.values())
        total = 1 / (max(0.0, alike - 1 / self.classes) / self.quota + 1 / min(n, self.ceiling))
        capped = {row: min(count, self.quota) for row, count in counts.items()}
        return {row: total * count / sum(capped.values()) for row, count in capped.items()}

    def enter(self, left: tuple[int, Floats, int], start: int, images: Tensor) -> None:
        """Keep the domain that was left, if it lasted; begin on its statistics if they fit better than the source's."""
        _, signature, lasted = left
        kept = None
        if lasted >= 96 and not self.mixed.on:
            kept = self.keep(signature)
        self.begin(afresh=True)
        self.mixed.restart()
        self.counted["changes"] += 1
        source = [layer.source for layer in self.layers]
        if kept is not None and self.misfit(images, source) > self.misfit(images, kept.statistics):
            self.counted["taken up"] += 1
            self.known, self.is_new = kept, False
            self.take_up(kept)
            return
        stored = [i for i in range(self.bank.size) if self.bank.births[i] <= self.clock + start - self.images]
        self.counted["forgotten"] += len(stored)
        self.bank.forget_before(self.clock + start - self.images + 1)

    def keep(self, signature: Floats) -> Domain:
        self.met += 1
        statistics = [layer.present for layer in self.layers]
        if self.known is not None:
            self.known.signature, self.known.statistics, self.known.met = signature, statistics, self.met
            return self.known
        if len(self.remembered) == self.domains:
            self.remembered.remove(min(self.remembered, key=lambda domain: domain.met))
            self.counted["replaced"] += 1
        self.remembered.append(Domain(signature, statistics, self.met))
        return self.remembered[-1]

    def misfit(self, images: Tensor, statistics: list[Moments]) -> float:
        found: list[float] = []
        for layer, values in zip(self.layers, statistics, strict=True):
            layer.present, layer.misfits = values, found
        with torch.no_grad():
            self.net(images)
        for layer in self.layers:
            layer.present, layer.misfits = layer.prior, None
        return sum(found) / len(found)

    def take_up(self, domain: Domain) -> None:
        for layer, values in zip(self.layers, domain.statistics, strict=True):
            layer.prior = values

    def recall(self) -> None:
        """The nearest remembered domain within one standard deviation takes the place of the source, with S = 256."""
        self.is_new = len(self.changes.domain) < 160
        near = [(self.changes.distance(domain.signature), domain) for domain in self.remembered]
        apart, nearest = min(near, key=lambda each: each[0], default=(math.inf, None))
        if nearest is not None and apart <= self.recall_bound:
            self.counted["recalled"] += 1
            self.known, self.weight, self.is_new = nearest, self.recalled_strength, False
            self.take_up(nearest)

    def begin(self, *, afresh: bool) -> None:
        self.seen, self.known, self.is_new, self.weight = 0, None, True, self.strength
        for layer in self.layers:
            layer.prior = layer.source if afresh else layer.present
            layer.present, layer.members = layer.prior, {}

    def learn_from(self, images: Tensor, logits: Tensor, rejected: list[bool], first: int, diversity: float) -> None:
        log_p = logits.float().log_softmax(1)
        entropies = (-(log_p.exp() * log_p).sum(1)).tolist()
        self.bank.diverse = diversity > self.diversity
        for i, image in enumerate(images):
            if rejected[i]:
                continue
            self.clock += 1
            entropy = entropies[i] if i >= first else math.nan
            self.bank.add(image[None], np.array([int(logits[i].argmax())]), np.array([entropy]))
            if self.clock % self.update_every == 0 and self.lr:
                self.update(diversity)

    def update(self, diversity: float) -> None:
        """A share of the updates that are due takes place; in each case parameters return toward the source."""
        if self.bank.size > 1:
            self.credit += diversity**2
        if self.credit >= 1:
            self.credit -= 1
            self.counted["learned"] += 1
            self.descend()
        else:
            self.counted["skipped"] += 1
        with torch.no_grad():
            for parameter, source in zip(self.trained, self.start, strict=True):
                parameter.sub_(self.anchor * (parameter - source))

    def descend(self) -> None:
        """L = Σ_i e^{3 c_i d_i} ℓ_i / capacity over samples of d_i ≥ mean d, under the bank's own statistics."""
        for layer in self.layers:
            layer.own = True
        logits = self.net(self.bank.samples.contiguous(memory_format=torch.channels_last))
        for layer in self.layers:
            layer.own = False
        certainties = [float((row.softmax(0) * row.log_softmax(0)).sum()) for row in logits.detach()]
        shares = [row.softmax(0) for row in logits.detach()]
        distances = [1 - float(p @ self.mean / p.norm() / self.mean.norm()) for p in shares]
        self.mean = 0.9 * self.mean + 0.1 * sum(shares, torch.zeros(())) / len(shares)
        certain, distant = scaled(certainties), scaled(distances)
        losses = []
        for row, c, d in zip(logits, certain, distant, strict=True):
            q = row.softmax(0).clamp(max=0.99)
            loss = -(q * (q / (1 - q) + 1e-5).log()).sum()
            losses.append((d >= sum(distant) / len(distant)) * math.exp(3 * c * d) * loss)
        self.adam.zero_grad()
        (torch.stack(losses).sum() / self.capacity).backward()  # type: ignore[no-untyped-call]
        self.adam.step()
