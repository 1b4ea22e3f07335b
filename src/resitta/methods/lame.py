"""LAME: leave the model alone, let neighbours in feature space agree (Boudiaf et al., CVPR 2022)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from resitta.method import Learner, Method, Needs, register
from resitta.settings import setting
from resitta.training.entropy import log_probabilities
from resitta.training.features import penultimate
from resitta.training.network import Network, Trained

Affinity = Literal["knn", "rbf", "linear"]


@register("lame")
@dataclass(frozen=True, kw_only=True)
class LAME(Method):
    """Laplacian-adjusted outputs: neighbours in feature space agree; returns log-probabilities as logits.

    `features`: None finds the input of the model's head; a module's name takes that module's output; a callable
    maps images to features.
    """

    title: ClassVar[str] = "LAME"
    trains: ClassVar[Trained] = "none"
    needs: ClassVar[Needs] = "nothing"
    paper: ClassVar[str] = (
        "Boudiaf, Mueller, Ben Ayed, Bertinetto. Parameter-free Online Test-time Adaptation. CVPR 2022."
    )

    affinity: Affinity = setting("knn", doc="how the affinity of two images comes from their features")
    neighbours: int = setting(5, at_least=1, doc="neighbours of an image in knn; sets the width of rbf")
    steps: int = setting(100, at_least=1, doc="iterations at most")
    tolerance: float = setting(1e-8, at_least=0, doc="relative change of the objective at which iterations end")
    features: str | Callable[[Tensor], Tensor] | None = setting(
        None, doc="a module's name, or images -> features; none is the input of the model's head"
    )

    def start(self, network: Network, generator: torch.Generator) -> Learner:
        """Begin on a fresh stream."""
        return LAMELearner(self, network)


def affinities(features: Tensor, kind: Affinity, neighbours: int) -> Tensor:
    """The N×N matrix K of affinities between L2-normalised features.

    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> affinities(points, "knn", neighbours=1)
    tensor([[0., 1., 0.],
            [1., 0., 0.],
            [0., 1., 0.]])
    """
    unit = F.normalize(features, dim=1)
    if kind == "linear":
        return unit @ unit.T
    distance = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
    if kind == "rbf":
        kth = distance.topk(min(neighbours, len(unit)), largest=False).values[:, -1]
        return torch.exp(-distance.square() / (2 * kth.mean().square()).clamp(min=1e-12))
    nearest = distance.topk(min(neighbours + 1, len(unit)), largest=False).indices[:, 1:]
    return torch.zeros_like(distance).scatter_(1, nearest, 1.0)


def laplacian(log_p: Tensor, kernel: Tensor, steps: int, tolerance: float) -> Tensor:
    """Iterate Y <- softmax(log p + K·Y) until the energy converges; return log Y."""
    log_y, old = log_p, float("inf")
    for step in range(steps):
        pairwise = kernel @ log_y.exp()
        log_y = log_probabilities(log_p + pairwise)
        y = log_y.exp()
        energy = float((y * (log_y - log_p - pairwise)).sum())
        if step > 1 and abs(energy - old) <= tolerance * abs(old):
            break
        old = energy
    return log_y


class LAMELearner(Learner):
    """The frozen source network and the correction of its outputs."""

    learns = False

    def __init__(self, method: LAME, network: Network) -> None:
        super().__init__()
        self.method = method
        self.network = network.fork()

    def predict(self, images: Tensor) -> Tensor:
        """Return the corrected log-probabilities."""
        logits, features = penultimate(self.network, images, self.method.features)
        precision = torch.promote_types(logits.dtype, torch.float32)  # distances need more than half precision
        kernel = affinities(features.to(precision), self.method.affinity, self.method.neighbours)
        log_p = log_probabilities(logits.to(precision))
        return laplacian(log_p, kernel, self.method.steps, self.method.tolerance).to(logits.dtype)
