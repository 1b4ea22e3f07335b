"""Features by predicted class: statistics of source images, and how far the means of a stream have moved from them."""

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resitta.training.features import penultimate
from resitta.training.network import Network

Variant = Literal["code", "paper"]
FLOOR = 1e-6
"""Added to variances, as PeTTA's authors do."""


@torch.no_grad()
def class_features(network: Network, batches: Iterable[Tensor], where: str | None = None) -> dict[str, Tensor]:
    """The number, mean and unbiased variance of the features of each predicted class: K, K×D and K×D.

    Classes that are predicted less than twice have a variance of zero.
    """
    found = [_sums(*penultimate(network, images, where)) for images in batches]
    counts, sums, squares = (torch.stack(part).sum(dim=0) for part in zip(*found, strict=True))
    each = counts.clamp(min=1)[:, None]
    means = sums / each
    variances = ((squares - each * means.square()) / (each - 1).clamp(min=1)).clamp(min=0)
    variances = variances * (counts > 1)[:, None]
    return {"counts": counts.long(), "means": means.to(network.dtype), "variances": variances.to(network.dtype)}


def _sums(logits: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class, on the host in float64: the number of samples, and the sums of features and of their squares."""
    chosen = F.one_hot(logits.argmax(dim=1), logits.shape[1]).cpu().double().T
    values = features.cpu().double()
    return chosen.sum(dim=1), chosen @ values, chosen @ values.square()


def means_by_class(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean features of each class, K×D, and how many samples each has.

    >>> means_by_class(torch.tensor([[1.0], [5.0], [3.0]]), torch.tensor([0, 2, 0]), classes=3)
    (tensor([[2.],
            [0.],
            [5.]]), tensor([2., 0., 1.]))
    """
    chosen = (labels == torch.arange(classes, device=labels.device)[:, None]).to(features)
    counts = chosen.sum(dim=1)
    return chosen @ features / counts.clamp(min=1)[:, None], counts


def divergence(
    means: Tensor, source_means: Tensor, source_variances: Tensor, chosen: Tensor, variant: Variant
) -> Tensor:
    """How far the chosen classes have moved, from 0 (not at all) to 1.

    With d = (μ - μ0)² / σ0² of each class and dimension: 1 - exp(-mean d) over classes and dimensions in the authors'
    code, the mean over classes of 1 - exp(-Σ d) over dimensions in the paper.

    >>> here, there, one = torch.zeros(1, 640), torch.full((1, 640), 0.1), torch.ones(1, 640)
    >>> divergence(there, here, one, torch.tensor([True]), "code")
    tensor(0.0100)
    >>> divergence(there, here, one, torch.tensor([True]), "paper")
    tensor(0.9983)
    """
    distances = (means - source_means).square() / (source_variances + FLOOR)
    number = chosen.sum().clamp(min=1)
    if variant == "code":
        return -torch.expm1(-(distances.mean(dim=1) * chosen).sum() / number)
    return (-torch.expm1(-distances.sum(dim=1)) * chosen).sum() / number


class ClassMeans(nn.Module):
    """The mean features of each class on the stream, which begin at those of the source."""

    means: Tensor
    source_means: Tensor
    source_variances: Tensor
    known: Tensor

    def __init__(self, source: Mapping[str, Tensor], rate: float, variant: Variant) -> None:
        super().__init__()
        self.rate, self.variant = rate, variant
        self.register_buffer("means", source["means"].clone())
        self.register_buffer("source_means", source["means"].clone(), persistent=False)
        self.register_buffer("source_variances", source["variances"].clone(), persistent=False)
        self.register_buffer("known", source["counts"] > 1, persistent=False)

    @torch.no_grad()
    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the divergence of the classes that are present, and then let their means follow."""
        found, counts = means_by_class(features.to(self.means), labels, len(self.means))
        present = counts > 0
        seen = divergence(self.means, self.source_means, self.source_variances, present & self.known, self.variant)
        self.means.copy_(torch.where(present[:, None], self.means.lerp(found, self.rate), self.means))
        return seen
