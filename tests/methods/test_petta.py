import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import Adapter, adapt
from resitta.errors import BadSetting
from resitta.method import create
from resitta.methods.petta import PeTTA, PeTTALearner, distance_from

Stream = Callable[[int], Tensor]
RATES: dict[str, Any] = {"lr": 0.01, "alpha": 0.1, "lam": 3.0, "beta": 0.3, "alpha_bn": 0.2, "anchor_weight": 0.7}


def darker(images: Tensor) -> Tensor:
    return images.flip(3) * 0.7


@pytest.fixture
def sure(precise: nn.Module, stream: Stream) -> nn.Module:
    """A network that predicts every class."""
    *body, head = precise.children()
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        features = nn.Sequential(*body)(stream(100))
        head.weight.mul_(15)
        head.bias.copy_(-head.weight @ features.mean(0))
    return precise


def clean(stream: Stream) -> Tensor:
    return stream(300).flip(2)[:150]


class HandRBN(nn.Module):
    """RoTTA's layer for feature maps."""

    def __init__(self, layer: nn.BatchNorm2d, alpha: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.alpha = layer.weight, layer.bias, layer.eps, alpha
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.mean, self.var = layer.running_mean, layer.running_var
        self.learning = False

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.learning:
            batch_mean = x.mean((0, 2, 3))
            batch_var = ((x - batch_mean.view(1, -1, 1, 1)) ** 2).mean((0, 2, 3))
            mean = (1 - self.alpha) * mean + self.alpha * batch_mean
            var = (1 - self.alpha) * var + self.alpha * batch_var
            self.mean, self.var = mean.detach(), var.detach()
        out = (x - mean.view(1, -1, 1, 1)) / (var.view(1, -1, 1, 1) + self.eps).sqrt()
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def ce(u: Tensor, v: Tensor) -> Tensor:
    """CE(u→v) = -Σ softmax(u) log softmax(v)."""
    losses = [-(a.softmax(0) * b.log_softmax(0)).sum() for a, b in zip(u, v, strict=True)]
    return torch.stack(losses).mean()


class ByHand:
    """PeTTA with a memory that has room for every sample."""

    def __init__(self, model: nn.Module, images: Tensor, *, loss: str, variant: str, regularizer: str) -> None:
        self.loss, self.variant, self.regularizer = loss, variant, regularizer
        self.teacher, self.student, self.anchor = (self.net(model) for _ in range(3))
        self.origins = [p.detach().clone() for p in self.affine(self.student)]
        self.adam = torch.optim.Adam(self.affine(self.student), lr=RATES["lr"])
        self.memory: list[Tensor] = []
        with torch.no_grad():
            features = model[:-1](images)  # type: ignore[index]
            labels = model[-1](features).argmax(1).tolist()  # type: ignore[index]
        groups = {k: features[[i for i, label in enumerate(labels) if label == k]] for k in set(labels)}
        self.first = {k: group.mean(0) for k, group in groups.items()}
        self.spread = {k: group.var(0, correction=1) for k, group in groups.items()}
        self.means = dict(self.first)
        self.seen: list[float] = []

    @staticmethod
    def net(model: nn.Module) -> nn.Sequential:
        parts = copy.deepcopy(model).children()
        return nn.Sequential(*[HandRBN(m, RATES["alpha_bn"]) if isinstance(m, nn.BatchNorm2d) else m for m in parts])

    @staticmethod
    def affine(net: nn.Sequential) -> list[nn.Parameter]:
        return [parameter for m in net if isinstance(m, HandRBN) for parameter in (m.weight, m.bias)]

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.teacher[:-1](images)
            logits: Tensor = self.teacher[-1](features)
        self.memory += list(images)
        gamma = self.diverged(features, logits.argmax(1).tolist())
        self.seen.append(gamma)
        self.update(gamma)
        return logits

    def diverged(self, features: Tensor, labels: list[int]) -> float:
        present = sorted(set(labels))
        distances = {k: (self.means[k] - self.first[k]) ** 2 / (self.spread[k] + 1e-6) for k in present}
        for k in present:
            mine = torch.stack([f for f, label in zip(features, labels, strict=True) if label == k])
            self.means[k] = (1 - RATES["beta"]) * self.means[k] + RATES["beta"] * mine.mean(0)
        if self.variant == "code":
            return 1 - math.exp(-sum(d.mean().item() for d in distances.values()) / len(present))
        return sum(1 - math.exp(-d.sum().item()) for d in distances.values()) / len(present)

    def update(self, gamma: float) -> None:
        images = torch.stack(self.memory)
        layers = [m for net in (self.teacher, self.student, self.anchor) for m in net if isinstance(m, HandRBN)]
        for layer in layers:
            layer.learning = True
        with torch.no_grad():
            teacher, anchor = self.teacher(images), self.anchor(images)
        weak = self.student(images)
        strong = self.student(darker(images))
        for layer in layers:
            layer.learning = False
        if self.loss == "sce":
            loss = (ce(teacher, weak) + ce(weak, teacher) + ce(teacher, strong) + ce(strong, teacher)) / 4
        else:
            loss = ce(teacher, strong)
        pairs = list(zip(self.affine(self.student), self.origins, strict=True))
        if self.regularizer == "cosine":
            terms = [-(p * q).sum() / (p.norm() * q.norm()).clamp(min=1e-8) for p, q in pairs]
        else:
            terms = [((p - q) ** 2).sum() for p, q in pairs]
        loss = loss + gamma * RATES["lam"] * torch.stack(terms).mean() + RATES["anchor_weight"] * ce(anchor, strong)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        alpha = (1 - gamma) * RATES["alpha"]
        with torch.no_grad():
            for slow, fast in zip(self.affine(self.teacher), self.affine(self.student), strict=True):
                slow.copy_((1 - alpha) * slow + alpha * fast)


VARIANTS = [
    {"loss": "sce", "variant": "code", "regularizer": "cosine"},
    {"loss": "ce", "variant": "code", "regularizer": "cosine"},
    {"loss": "sce", "variant": "paper", "regularizer": "l2"},
]


@pytest.mark.parametrize("batch_size", [1, 20])
@pytest.mark.parametrize("chosen", VARIANTS, ids=lambda chosen: "-".join(chosen.values()))
def test_steps_by_hand(sure: nn.Module, stream: Stream, batch_size: int, chosen: dict[str, Any]) -> None:
    """The quota of a class, 4000/5, exceeds the stream, so that every sample is stored."""
    with torch.no_grad():  # a cosine with zeros has no gradient
        sure.get_parameter("1.bias").fill_(0.3)
    adapter = adapt(sure, "petta", source=clean(stream), strong_view=darker, capacity=4000, **chosen, **RATES)
    literal = ByHand(sure, clean(stream), **chosen)
    count = {1: 10, 20: 200}[batch_size]
    for batch in torch.split(stream(200)[:: 200 // count], batch_size):
        torch.testing.assert_close(adapter(batch), literal(batch), rtol=1e-8, atol=1e-8)
    assert adapter.stats.updates == count // batch_size
    assert literal.seen[0] == 0
    assert 0.01 < literal.seen[-1] <= 1


def test_the_default_rates_are_those_of_its_authors() -> None:
    names = ("lr", "alpha", "lam", "anchor_weight", "beta", "alpha_bn", "capacity", "loss", "variant", "regularizer")
    method = create("petta")
    expected = [1e-3, 1e-3, 10, 1, 0.05, 0.05, 64, "sce", "code", "cosine"]
    assert [getattr(method, name) for name in names] == expected
    assert {name: dict(values) for name, values in PeTTA.presets.items()} == {
        "cifar10": {},
        "cifar100": {},
        "imagenet": {"loss": "ce"},
    }


def test_every_batch_is_followed_by_an_update_on_the_memory(sure: nn.Module, stream: Stream) -> None:
    adapter = adapt(sure, "petta", source=clean(stream), capacity=16)
    for batch in torch.split(stream(60), 20):
        adapter(batch)
    assert adapter.stats.updates == 3
    assert adapter.stats.bank is not None
    assert adapter.stats.bank.occupancy <= 16


def test_it_asks_for_source_images(sure: nn.Module) -> None:
    with pytest.raises(BadSetting, match="petta needs data of the source domain"):
        adapt(sure, "petta")


@pytest.mark.parametrize(("kind", "expected"), [("cosine", -1 / math.sqrt(2) / 3), ("l2", (1 + 0 + 16) / 3)])
def test_the_mean_is_over_tensors_of_any_size(kind: str, expected: float) -> None:
    tensors = [torch.tensor([1.0, 1.0]), torch.tensor([2.0]), torch.tensor([-2.0])]
    origins = [torch.tensor([1.0, 0.0]), torch.tensor([2.0]), torch.tensor([2.0])]
    torch.testing.assert_close(distance_from(tensors, origins, kind).item(), expected)  # type: ignore[arg-type]


def test_its_export_predicts_the_same(sure: nn.Module, stream: Stream) -> None:
    adapter = adapt(sure, "petta", source=clean(stream), strong_view=darker, **RATES)
    for batch in torch.split(stream(60), 20):
        adapter(batch)
    with adapter.paused():
        expected = adapter(stream(10))
    assert not torch.allclose(expected, sure(stream(10)), atol=1e-3)
    torch.testing.assert_close(adapter.export()(stream(10)), expected)


def test_a_saved_adapter_continues_the_same(sure: nn.Module, stream: Stream) -> None:
    adapter, other = (adapt(sure, "petta", source=clean(stream)) for _ in range(2))
    first, second = torch.split(stream(60), 30)
    adapter(first)
    other.load_state_dict(adapter.state_dict())
    torch.testing.assert_close(other(second), adapter(second), rtol=0, atol=0)
    assert not torch.equal(learner_of(adapter).classes.means, learner_of(adapter).classes.source_means)


def learner_of(adapter: Adapter) -> PeTTALearner:
    assert isinstance(adapter.learner, PeTTALearner)
    return adapter.learner
