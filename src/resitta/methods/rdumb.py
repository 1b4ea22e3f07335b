"""RDumb: ETA that begins again from the source every thousand batches (Press et al., NeurIPS 2023)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resitta.method import Learner, register
from resitta.methods.eta import ETA, ETALearner
from resitta.settings import setting
from resitta.training.network import Network
from resitta.training.restart import Restart


@register("rdumb")
@dataclass(frozen=True, kw_only=True)
class RDumb(ETA):
    """ETA that forgets everything every so many batches, however many images a batch has."""

    title: ClassVar[str] = "RDumb"
    paper: ClassVar[str] = (
        "Press, Schneider, Kümmerer, Bethge. RDumb: A simple approach that questions our progress in "
        "continual test-time adaptation. NeurIPS 2023."
    )

    reset_every: int = setting(1000, at_least=1, doc="batches between two resets")

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return RDumbLearner(self, network)


class RDumbLearner(Learner):
    """ETA's learner, and the values its parameters began with. It resets after a batch, so that predictions know."""

    def __init__(self, method: RDumb, network: Network) -> None:
        super().__init__()
        self.every = method.reset_every
        self.eta = ETALearner(method, network)
        self.restart = Restart(self.eta.optimizer.trained)

    def predict(self, images: Tensor) -> Tensor:
        """Return ETA's logits."""
        return self.eta.predict(images)

    def exportable_network(self) -> Network | None:
        """ETA's."""
        return self.eta.exportable_network()

    def step(self, images: Tensor) -> Tensor:
        """Let ETA predict and learn; then, if it is time, forget all but the number of batches."""
        logits = self.eta.step(images)
        self.updates += 1
        if self.updates % self.every == 0:
            now = torch.ones((), dtype=torch.bool, device=logits.device)
            self.restart.parameters_of(self.eta.optimizer, now)
            self.eta.optimizer.forget(now)
            self.eta.filter.forget()
        return logits
