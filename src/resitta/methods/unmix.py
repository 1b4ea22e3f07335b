"""UnMix-TNS: unmixed statistics for temporally correlated batches, without training (Tomar et al., ICLR 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, graphed, register
from resitta.norm.choice import BATCH_SIZE, COMPONENTS, FULL_BATCH, unmixing
from resitta.norm.unmix_bn import updating_components
from resitta.settings import setting
from resitta.training.network import Network, Trained


@register("unmix")
@dataclass(frozen=True, kw_only=True)
class UnMix(Method):
    """A mixture of K statistics per BatchNorm layer; the weights stay as they are.

    Only a step moves the components, in its one forward pass. To train on these statistics, see `norm="unmix"` of
    "tent", "roid" and "cmf".
    """

    title: ClassVar[str] = "UnMix-TNS"
    trains: ClassVar[Trained] = "none"
    paper: ClassVar[str] = (
        "Tomar, Vray, Thiran, Bozorgtabar. Un-Mixing Test-Time Normalization Statistics: Combatting Label Temporal "
        "Correlation. ICLR 2024."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {},
        "cifar100": {},
        "imagenet": {"full_batch": 16},
    }

    components: int = setting(16, at_least=1, doc=COMPONENTS)
    batch_size: int = setting(64, at_least=1, doc=BATCH_SIZE)
    full_batch: int = setting(64, at_least=1, doc=FULL_BATCH)

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return UnMixLearner(self, network, generator)


class UnMixLearner(Learner):
    """The source network on the statistics of its mixtures."""

    def __init__(self, method: UnMix, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        self.network = network.fork().with_bn(unmixing(method, generator))

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits; each sample is normalised on its own."""
        return self.network.predict(images)

    def step(self, images: Tensor) -> Tensor:
        """Predict, and let the components follow."""
        logits = self.follow(images).clone()
        self.updates += 1
        return logits

    @graphed
    def follow(self, images: Tensor) -> Tensor:
        """Return the logits before the components move."""
        with torch.no_grad(), updating_components(self.network):
            return self.network(images)
