"""Sharpness-aware minimisation: go down the gradient found at the worst point nearby (Foret et al., ICLR 2021)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from resitta.training.optimizer import Gradients, Optimizer

TINY = 1e-12
"""Keeps a gradient of zero from being divided by zero."""


class SAM(nn.Module):
    """One step in two passes: e = ρ g / ‖g‖ with the gradient g at θ, then a step of θ along the gradient at θ + e.

    ‖g‖ is the norm over all parameters together. `base` takes the step: its state is what is saved.

    >>> from resitta.training.optimizer import SGD
    >>> weight = nn.Parameter(torch.tensor([3.0]))
    >>> sam = SAM(SGD([weight], lr=0.1), rho=0.5)
    >>> sam.descend(weight.square().sum(), lambda: weight.square().sum())  # 3.5²
    tensor(12.2500)
    >>> round(weight.item(), 4)  # 3 - 0.1 · 2 · 3.5
    2.3
    """

    def __init__(self, base: Optimizer, *, rho: float = 0.05) -> None:
        super().__init__()
        self.base, self.rho = base, rho

    def descend(
        self,
        loss: Tensor,
        again: Callable[[], Tensor],
        complete: Callable[[Gradients], Gradients] | None = None,
    ) -> Tensor:
        """Take one step; return the loss at θ + e, which `again` computes.

        If either loss is not finite the step is skipped and counted once. `complete` may change either gradient.
        """
        finish = complete or (lambda gradients: gradients)
        ascent = finish(self.base.gradients(loss))
        with self._perturbed(ascent):
            worst = again()
            gradients = finish(self.base.gradients(worst))
        self.base.step(gradients, loss.detach() + worst.detach())
        return worst.detach()

    @contextmanager
    def _perturbed(self, gradients: Gradients) -> Iterator[None]:
        """Inside, the parameters stand at θ + e; afterwards, whatever happens, at θ to the last bit."""
        moved = [(p, g) for p, g in zip(self.base.trained, gradients, strict=True) if g is not None]
        parameters = [parameter for parameter, _ in moved]
        before = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            self._climb(parameters, [gradient for _, gradient in moved])
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)

    def _climb(self, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        if parameters:
            dtype = torch.promote_types(gradients[0].dtype, torch.float32)
            norm = torch.stack([gradient.norm(dtype=dtype) for gradient in gradients]).norm()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient * (self.rho / (norm + TINY)).to(gradient.dtype))
