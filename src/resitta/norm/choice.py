"""How a method's settings choose what BatchNorm layers normalise with: batch statistics or UnMix-TNS."""

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import torch

from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, BatchStatisticsBN
from resitta.norm.unmix_bn import UnMixBN

Wrap = Callable[[BatchNorm], AdaptiveBN]
"""How a BatchNorm layer is wrapped."""
Norm = Literal["batch", "unmix"]
NORM = "statistics of BatchNorm layers: the batch's, or UnMix-TNS"
COMPONENTS = "K, components of UnMix-TNS; its authors take 128 for mixed domains"
BATCH_SIZE = "B, the batch size that the stream is configured with"
FULL_BATCH = "B_max, the batch size at which UnMix-TNS moves by a layer's momentum; its authors take 16 for ImageNet"


class UnMixSettings(Protocol):
    """The settings of UnMix-TNS, described above."""

    @property
    def components(self) -> int:
        """K."""

    @property
    def batch_size(self) -> int:
        """B."""

    @property
    def full_batch(self) -> int:
        """B_max."""


class NormSettings(UnMixSettings, Protocol):
    """Those of a method that lets its user choose."""

    @property
    def norm(self) -> Norm:
        """Which statistics."""


def unmixing(method: UnMixSettings, generator: torch.Generator) -> Wrap:
    """Return how to wrap a layer in UnMix-TNS, its components drawn from a generator."""
    return partial(
        UnMixBN,
        generator=generator,
        components=method.components,
        batch_size=method.batch_size,
        full_batch=method.full_batch,
    )


def chosen_norm(method: NormSettings, generator: torch.Generator) -> Wrap:
    """Return how to wrap a layer in what the settings choose."""
    return BatchStatisticsBN if method.norm == "batch" else unmixing(method, generator)
