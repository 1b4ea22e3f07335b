"""The suite's images, and a network that is certain of some of them and uncertain of others."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.method import Method
from resitta.training.entropy import entropy

Norm = Literal["batch_norm", "layer_norm", "group_norm"]
"""What the suite's networks normalise with."""


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
def spread_network(channels: int = 3, classes: int = 5, norm: Norm = "batch_norm") -> nn.Module:
    """Like `tiny_network`, but certain of `spread_images` with a strong tint, and uncertain of those with a weak one.

    The logits are random combinations of the features' three principal components, so that they are small where the
    features are near their mean. `norm`: the kind of the normalisation layers; "layer_norm" is a network of tokens.
    """
    images = spread_images(256, (channels, 16, 16), seed=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _untrained(channels, classes, norm)
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


def _untrained(channels: int, classes: int, norm: Norm = "batch_norm") -> nn.Sequential:
    if norm == "layer_norm":
        return nn.Sequential(
            *(nn.Conv2d(channels, 16, 4, stride=4), nn.Flatten(2), Transposed(), TokenBlock(16), TokenBlock(16)),
            *(nn.LayerNorm(16), Transposed(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, classes)),
        )
    first, second = [nn.BatchNorm2d(n) if norm == "batch_norm" else nn.GroupNorm(n // 4, n) for n in (8, 16)]
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, 3, bias=False), first, nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, bias=False), second, nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes)),
    )


class TokenBlock(nn.Module):
    """x + attention(norm1(x)), then + mlp(norm2(·)), on N×tokens×width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after the block."""
        x = x + nn.functional.scaled_dot_product_attention(*self.qkv(self.norm1(x)).chunk(3, dim=2))
        tokens: Tensor = x + self.mlp(self.norm2(x))
        return tokens


class Transposed(nn.Module):
    """Swaps channels and positions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return N×positions×channels for N×channels×positions, and back."""
        return x.transpose(1, 2)
