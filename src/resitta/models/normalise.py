"""Input normalisation as a layer, so that every model takes plain images in [0, 1].

Corruptions and strong views are defined on [0, 1] images; a model that holds its own normalisation lets
streams and methods ignore what it was trained with.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from resitta.errors import BadSetting


class Normalise(nn.Module):
    """(x - mean) / std, one value per channel.

    The values move with `.to` but stay out of the state_dict, so that public checkpoints, which hold weights
    only, still load with `strict=True`.

    >>> Normalise((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))(torch.ones(1, 3, 1, 1)).flatten().tolist()
    [1.0, 1.0, 1.0]
    >>> len(Normalise((0.5,), (0.5,)).state_dict())
    0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std, default=0.0) <= 0:
            raise BadSetting(f"one mean and one std > 0 per channel are needed; found mean={mean}, std={std}")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise N×C×H×W images."""
        return (x - self.mean) / self.std


class Normalised(nn.Module):
    """A model that expects normalised images, made to take images in [0, 1].

    >>> Normalised(nn.Flatten(), mean=(0.5,), std=(0.25,))(torch.ones(1, 1, 1, 2)).tolist()
    [[2.0, 2.0]]
    """

    def __init__(self, model: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.normalise = Normalise(mean, std)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the wrapped model's logits."""
        logits: Tensor = self.model(self.normalise(x))
        return logits
