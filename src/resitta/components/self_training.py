"""Self-training: a student learns the soft labels of a teacher, the teacher follows the student slowly."""

import torch
from torch import Tensor, nn

from resitta.components.entropy import log_probabilities


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """CE(p, q) = -Σ p log q of each row, with p from the target's logits and q from the logits.

    >>> same = torch.tensor([[2.0, 0.0]])
    >>> soft_cross_entropy(same, same)  # of a distribution with itself: its entropy
    tensor([0.3653])
    """
    return -(target_logits.softmax(dim=1) * log_probabilities(logits)).sum(dim=1)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, nu: float) -> None:
    """θ' <- (1-ν) θ' + ν θ, parameters only: each network keeps its own statistics.

    >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
    >>> follow(teacher, student, nu=0.25)
    >>> teacher.weight.item()
    0.25
    """
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.lerp_(fast, nu)
