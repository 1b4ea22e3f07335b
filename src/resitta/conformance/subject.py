"""The suite's images, and a network that is certain of some of them and uncertain of others."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.method import Method
from resitta.training.entropy import entropy


@dataclass(frozen=True)
class Subject:
    """A method under test: the model, and the means to make adapters and images."""

    method: Method
    model: nn.Module
    pool: Tensor
    device: torch.device
    options: dict[str, Any]

    def adapter(self, seed: int = 0) -> Adapter:
        """A fresh adapter."""
        return Adapter(self.model, self.method, seed=seed, **self.options)

    def images(self, n: int, start: int = 0) -> Tensor:
        """The next `n` images of the pool, which is repeated."""
        return self.pool[torch.arange(start, start + n, device=self.device) % len(self.pool)]

    def run(self, adapter: Adapter, n: int = 200, size: int = 50) -> Tensor:
        """Feed a stream to an adapter, which learns from each batch before the next one, and return all logits."""
        logits = []
        for batch in torch.split(self.images(n), size):
            logits.append(adapter(batch))
            adapter.sync()
        return torch.cat(logits)

    def certainty(self) -> str:
        """How certain the source is of the images, in words."""
        adapter = self.adapter()
        with torch.no_grad():
            logits = adapter.source(self.images(200).to(adapter.source.dtype))
        low, high = (entropy(logits) / math.log(logits.shape[1])).aminmax()
        return f"the entropies of the source's predictions lie between {low:.2f} and {high:.2f} of ln C"


def spread_images(n: int, shape: tuple[int, int, int] = (3, 16, 16), seed: int = 0) -> Tensor:
    """Cloudy, grainy images with tints of different strength and a drifting brightness.

    Neighbouring pixels are correlated, as in pictures: a guard would reject noise.

    >>> spread_images(2).shape
    torch.Size([2, 3, 16, 16])
    """
    generator = torch.Generator().manual_seed(seed)
    strength = torch.rand((n, 1, 1, 1), generator=generator)
    tint = torch.rand((n, shape[0], 1, 1), generator=generator) - 0.5
    clouds = torch.rand((n, shape[0], 4, 4), generator=generator) - 0.5
    clouds = nn.functional.interpolate(clouds, shape[1:], mode="bilinear")
    grain = torch.rand((n, *shape), generator=generator) - 0.5
    light = torch.linspace(0.35, 0.65, n).view(-1, 1, 1, 1)
    return (light + strength * tint + 0.2 * clouds + 0.1 * grain).clamp(0, 1)


def tiny_network(channels: int = 3, classes: int = 5) -> nn.Module:
    """A convolutional classifier with two BatchNorm layers whose statistics are not the trivial ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _untrained(channels, classes)
        for _ in range(10):
            network(torch.rand(32, channels, 16, 16))
    return network.eval()


@torch.no_grad()
def spread_network(channels: int = 3, classes: int = 5) -> nn.Module:
    """Like `tiny_network`, but certain of `spread_images` with a strong tint, and uncertain of those with a weak one.

    The logits are random combinations of the features' three principal components, so that they are small where the
    features are near their mean.
    """
    images = spread_images(256, (channels, 16, 16), seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _untrained(channels, classes)
        mixture = 2 * torch.randn(classes, 3)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    network(images)
    *body, head = network.eval()
    assert isinstance(head, nn.Linear)
    features = nn.Sequential(*body)(images)
    mean = features.mean(dim=0)
    _, lengths, axes = torch.linalg.svd(features - mean, full_matrices=False)
    head.weight.copy_(mixture @ (axes[:3] / lengths[:3, None]) * math.sqrt(len(images)))
    head.bias.copy_(-head.weight @ mean)
    return network


def _untrained(channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes)),
    )
