"""BN: normalise with the statistics of the test batch; the weights stay as they are (Nado et al., 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, Method, Needs, register
from resitta.norm.bn_layers import BatchStatisticsBN
from resitta.training.network import Network, Trained


@register("bn")
@dataclass(frozen=True, kw_only=True)
class BatchNormAdapt(Method):
    """Statistics of the test batch. Helps on shuffled streams, hurts when a batch holds few classes."""

    title: ClassVar[str] = "BN"
    trains: ClassVar[Trained] = "none"
    needs: ClassVar[Needs] = "batch_norm"
    paper: ClassVar[str] = (
        "Nado, Padhy, Sculley, D'Amour, Lakshminarayanan, Snoek. Evaluating Prediction-Time Batch Normalization for "
        "Robustness under Covariate Shift. 2020."
    )

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return BatchNormLearner(network)


class BatchNormLearner(Learner):
    """The source network on batch statistics."""

    learns = False

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.fork().with_bn(BatchStatisticsBN)

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits under the batch's own statistics."""
        return self.network.predict(images)
