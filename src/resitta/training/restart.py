"""Begin training again from the source, wherever the decision to do so is made."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from resitta.training.optimizer import Optimizer


class Restart(nn.Module):
    """The values that parameters had at the start. They are the source's, and so not part of the state.

    >>> from resitta.training.optimizer import SGD
    >>> weight = nn.Parameter(torch.ones(1))
    >>> restart, sgd = Restart([weight]), SGD([weight], lr=0.1, momentum=0.9)
    >>> sgd.descend(weight.sum())
    >>> restart.parameters_of(sgd, torch.tensor(False))
    >>> round(weight.item(), 4)
    0.9
    >>> restart.parameters_of(sgd, torch.tensor(True))
    >>> weight.item()
    1.0
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        for number, parameter in enumerate(parameters):
            self.register_buffer(f"first_{number}", parameter.detach().clone(), persistent=False)

    @torch.no_grad()
    def parameters_of(self, optimizer: Optimizer, when: Tensor) -> None:
        """Bring the parameters of an optimizer back where the flag `when` is true; without waiting for the device."""
        for parameter, first in zip(optimizer.trained, self.buffers(), strict=True):
            parameter.copy_(torch.where(when, first.to(parameter.dtype), parameter))
