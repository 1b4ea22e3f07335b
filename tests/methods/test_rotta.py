import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt
from resitta.methods.rotta import timeliness

Stream = Callable[[int], Tensor]


def darker(images: Tensor) -> Tensor:
    return images.flip(3) * 0.7


class HandRBN(nn.Module):
    """RoTTA's layer for feature maps: (1-α) running + α batch, the gradient through the batch's share."""

    def __init__(self, layer: nn.BatchNorm2d, alpha: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.alpha = layer.weight, layer.bias, layer.eps, alpha
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.mean, self.var = layer.running_mean.view(1, -1, 1, 1), layer.running_var.view(1, -1, 1, 1)
        self.learning = False

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.learning:
            batch_mean = x.mean((0, 2, 3), keepdim=True)
            batch_var = ((x - batch_mean) ** 2).mean((0, 2, 3), keepdim=True)
            mean = (1 - self.alpha) * mean + self.alpha * batch_mean
            var = (1 - self.alpha) * var + self.alpha * batch_var
            self.mean, self.var = mean.detach(), var.detach()
        out = (x - mean) / (var + self.eps).sqrt()
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


def by_hand(model: nn.Module, alpha: float) -> nn.Sequential:
    layers = copy.deepcopy(model).children()
    return nn.Sequential(*[HandRBN(m, alpha) if isinstance(m, nn.BatchNorm2d) else m for m in layers])


def affine(net: nn.Sequential) -> list[nn.Parameter]:
    return [parameter for m in net if isinstance(m, HandRBN) for parameter in (m.weight, m.bias)]


class ByHand:
    """RoTTA with a memory that has room for every sample."""

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        alpha: float,
        nu: float,
        capacity: int,
        every: int,
        intransigent: bool = False,
    ) -> None:
        self.teacher, self.student = by_hand(model, alpha), by_hand(model, alpha)
        self.adam = torch.optim.Adam(affine(self.student), lr=lr)
        self.nu, self.capacity, self.every = 0.0 if intransigent else nu, capacity, every
        self.predictor = self.student if intransigent else self.teacher
        self.memory: list[Tensor] = []

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.predictor(images)
        for image in images:
            self.memory.append(image)
            if len(self.memory) % self.every == 0:
                self.update()
        return logits

    def update(self) -> None:
        images = torch.stack(self.memory)
        for layer in [*self.teacher, *self.student]:
            layer.learning = True
        with torch.no_grad():
            targets = self.teacher(images).softmax(1)
        losses = -(targets * self.student(darker(images)).log_softmax(1)).sum(1)
        for layer in [*self.teacher, *self.student]:
            layer.learning = False
        # A sample is one old as soon as it is stored.
        ages = [len(self.memory) - index for index in range(len(self.memory))]
        exponents = [math.exp(-age / self.capacity) for age in ages]
        weights = torch.tensor([e / (1 + e) for e in exponents], dtype=losses.dtype)
        self.adam.zero_grad()
        (losses * weights).mean().backward()
        self.adam.step()
        with torch.no_grad():
            for slow, fast in zip(affine(self.teacher), affine(self.student), strict=True):
                slow.copy_((1 - self.nu) * slow + self.nu * fast)


@pytest.mark.parametrize("intransigent", [False, True])
@pytest.mark.parametrize("batch_size", [1, 8, 20])
def test_updates_by_hand(precise: nn.Module, stream: Stream, batch_size: int, intransigent: bool) -> None:
    """The quota of a class, 400/5, exceeds the stream, so that every sample is stored."""
    rates: dict[str, Any] = {"lr": 0.01, "alpha": 0.2, "nu": 0.1, "intransigent": intransigent}
    adapter = adapt(precise, "rotta", strong_view=darker, capacity=400, update_every=8, **rates)
    literal = ByHand(precise, capacity=400, every=8, **rates)
    for batch in torch.split(stream(60), batch_size):
        torch.testing.assert_close(adapter(batch), literal(batch))
    assert adapter.stats.updates == 7
    assert adapter.stats.bank is not None
    assert adapter.stats.bank.occupancy == 60


def test_the_default_rates_are_those_of_its_authors(precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, "rotta", strong_view=darker, capacity=1000)
    literal = ByHand(precise, lr=1e-3, alpha=0.05, nu=0.001, capacity=1000, every=64)
    for batch in torch.split(stream(200), 50):
        torch.testing.assert_close(adapter(batch), literal(batch))


def test_the_default_memory_holds_64(precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, "rotta")
    adapter(stream(300))
    assert adapter.stats.updates == 4
    assert adapter.stats.bank is not None
    assert adapter.stats.bank.capacity == 64
    assert adapter.stats.bank.occupancy <= 64


def test_recent_samples_weigh_more() -> None:
    ages = torch.tensor([0.0, 0.5, 1.0, 2.0])
    expected = [math.exp(-age) / (1 + math.exp(-age)) for age in ages.tolist()]
    torch.testing.assert_close(timeliness(ages).tolist(), expected, rtol=1e-6, atol=0)


def test_its_export_predicts_the_same(precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, "rotta", strong_view=darker, update_every=8, alpha=0.2, nu=0.1)
    adapter(stream(40))
    with adapter.paused():
        expected = adapter(stream(10))
    assert not torch.allclose(expected, precise(stream(10)), atol=1e-3)
    torch.testing.assert_close(adapter.export()(stream(10)), expected)


def test_a_memory_without_samples_is_not_trained_on(precise: nn.Module, stream: Stream) -> None:
    with torch.no_grad():
        precise.get_parameter("8.bias").fill_(torch.nan)
    adapter = adapt(precise, "rotta", update_every=4)
    adapter(stream(9))
    assert adapter.stats.updates == 0
