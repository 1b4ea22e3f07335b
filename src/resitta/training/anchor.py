"""An anchor: parameters that learn are drawn back to where they began, so that what they learned wrongly wears off."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Anchor(nn.Module):
    """θ <- (1-a) θ + a θ_s for given parameters, with the θ_s they had when the anchor was cast.

    Adam moves a parameter by at most about its learning rate per step, so it stays within lr / a of the source
    however long the stream.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> anchor = Anchor([weight], pull=0.25)
    >>> _ = weight.data.fill_(5.0)
    >>> anchor([weight])
    >>> weight.data
    tensor([4.])
    """

    def __init__(self, parameters: Iterable[Tensor], pull: float) -> None:
        super().__init__()
        self.pull = pull
        for number, parameter in enumerate(parameters if pull else ()):
            self.register_buffer(f"source_{number}", parameter.detach().clone(), persistent=False)

    @torch.no_grad()
    def forward(self, parameters: Iterable[Tensor]) -> None:
        """Draw the parameters back, in place."""
        if pairs := list(zip(parameters, self.buffers(), strict=True)) if self.pull else []:
            sources = [source.to(parameter.dtype) for parameter, source in pairs]  # converted, they may differ
            torch._foreach_lerp_([parameter for parameter, _ in pairs], sources, self.pull)
