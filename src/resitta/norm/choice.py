"""The settings with which a method chooses how BatchNorm layers normalise: batch statistics or UnMix-TNS."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from resitta.norm.bn_layers import AdaptiveBN, BatchNorm, BatchStatisticsBN
from resitta.norm.unmix_bn import UnMixBN
from resitta.settings import setting

Wrap = Callable[[BatchNorm], AdaptiveBN]
"""How a BatchNorm layer is wrapped."""


@dataclass(frozen=True, kw_only=True)
class UnMixSettings:
    """The settings of UnMix-TNS."""

    components: int = setting(16, at_least=1, doc="K, components of UnMix-TNS; its authors take 128 for mixed domains")
    batch_size: int = setting(64, at_least=1, doc="B, the batch size that the stream is configured with")
    full_batch: int = setting(
        64, at_least=1, doc="B_max, the batch size at which UnMix-TNS moves by a layer's momentum; 16 on ImageNet"
    )

    def unmixing(self, generator: torch.Generator) -> Wrap:
        """Return how to wrap a layer in UnMix-TNS, its components drawn from a generator."""
        return partial(
            UnMixBN,
            generator=generator,
            components=self.components,
            batch_size=self.batch_size,
            full_batch=self.full_batch,
        )


@dataclass(frozen=True, kw_only=True)
class NormChoice(UnMixSettings):
    """Batch statistics, or UnMix-TNS in their place.

    >>> NormChoice().wrapper(torch.Generator()).__name__
    'BatchStatisticsBN'
    """

    norm: Literal["batch", "unmix"] = setting("batch", doc="statistics of BatchNorm layers: the batch's, or UnMix-TNS")

    def wrapper(self, generator: torch.Generator) -> Wrap:
        """Return how to wrap a layer."""
        return BatchStatisticsBN if self.norm == "batch" else self.unmixing(generator)
