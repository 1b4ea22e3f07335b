import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from resitta import adapt
from resitta.errors import NotExportable

Stream = Callable[[int], Tensor]


class HandIABN(nn.Module):
    """NOTE's layer for feature maps, from its equations."""

    def __init__(self, layer: nn.BatchNorm2d, k: float, momentum: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.k, self.momentum = layer.weight, layer.bias, layer.eps, k, momentum
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.mean, self.var = layer.running_mean.view(1, -1, 1, 1), layer.running_var.view(1, -1, 1, 1)
        self.learning = False

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.learning:
            mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True)
            self.mean = ((1 - self.momentum) * self.mean + self.momentum * mean).detach()
            self.var = ((1 - self.momentum) * self.var + self.momentum * var).detach()
        positions = x.shape[2] * x.shape[3]
        own_mean, own_var = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
        mean_limit = self.k * ((var + self.eps) / positions).sqrt()
        var_limit = self.k * (var + self.eps) * (2 / (positions - 1)) ** 0.5
        mean = mean + self.shrink(own_mean - mean, mean_limit)
        var = (var + self.shrink(own_var - var, var_limit)).clamp(min=0)
        out = (x - mean) / (var + self.eps).sqrt()
        return out * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)

    @staticmethod
    def shrink(x: Tensor, limit: Tensor) -> Tensor:
        return x.sign() * (x.abs() - limit).clamp(min=0)


def by_hand(model: nn.Module, k: float, momentum: float) -> nn.Sequential:
    layers = copy.deepcopy(model).children()
    return nn.Sequential(*[HandIABN(m, k, momentum) if isinstance(m, nn.BatchNorm2d) else m for m in layers])


def test_predictions_by_the_formula(precise: nn.Module, stream: Stream) -> None:
    adapter = adapt(precise, "note")
    expected = by_hand(precise, k=4.0, momentum=0.01)(stream(30))
    torch.testing.assert_close(torch.cat([adapter(batch) for batch in torch.split(stream(30), 7)]), expected)


@pytest.mark.parametrize("batch_size", [1, 8, 5])
def test_updates_by_hand(precise: nn.Module, stream: Stream, batch_size: int) -> None:
    """The memory has room for all samples, so each update trains on everything seen so far."""
    adapter = adapt(precise, "note", k=1.0, momentum=0.2, lr=0.01, update_every=8)
    net = by_hand(precise, k=1.0, momentum=0.2)
    layers = [module for module in net if isinstance(module, HandIABN)]
    adam = torch.optim.Adam([p for layer in layers for p in (layer.weight, layer.bias)], lr=0.01)
    images, seen = stream(40), 0
    for batch in torch.split(images, batch_size):
        expected = net(batch).detach()
        torch.testing.assert_close(adapter(batch), expected)
        for _ in batch:
            seen += 1
            if seen % 8 == 0:
                for layer in layers:
                    layer.learning = True
                p = net(images[:seen]).softmax(1)
                for layer in layers:
                    layer.learning = False
                adam.zero_grad()
                (-(p * p.log()).sum(1)).mean().backward()
                adam.step()
    assert adapter.stats.updates == 5
    assert adapter.stats.bank is not None
    assert adapter.stats.bank.occupancy == 40


def test_the_defaults_are_those_of_its_authors(precise: nn.Module, stream: Stream) -> None:
    named = adapt(precise, "note", lr=1e-4, k=4.0, momentum=0.01, capacity=64, update_every=64)
    plain = adapt(precise, "note")
    for batch in torch.split(stream(200), 50):
        torch.testing.assert_close(plain(batch), named(batch), rtol=0, atol=0)
    assert plain.stats.updates == 3
    assert plain.stats.bank is not None
    assert plain.stats.bank.occupancy == 64


def test_a_memory_without_samples_is_not_trained_on(precise: nn.Module, stream: Stream) -> None:
    with torch.no_grad():
        precise.get_parameter("8.bias").fill_(torch.nan)
    adapter = adapt(precise, "note", update_every=4)
    adapter(stream(9))
    assert adapter.stats.updates == 0


def test_no_checkpoint_can_express_it(precise: nn.Module) -> None:
    with pytest.raises(NotExportable, match="note"):
        adapt(precise, "note").export()
