"""Adam inside the module tree, so that `state_dict()` and `.to()` of an adapter carry its moments."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel


class Adam(nn.Module):
    """torch's Adam without weight decay. With nothing to train (layers without affine parameters) a step does nothing.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> Adam([weight], lr=0.1).descend(weight.sum())
    >>> round(weight.item(), 3)
    0.9
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float) -> None:
        super().__init__()
        trained = list(parameters)
        if any(p.dtype == torch.float16 for p in trained):
            raise UnsuitableModel("float16 parameters are too coarse to train; give the model in float32 or bfloat16")
        self.adam = torch.optim.Adam(trained, lr=lr, betas=(0.9, 0.999)) if trained else None

    def descend(self, loss: Tensor, complete: Callable[[Sequence[nn.Parameter]], None] | None = None) -> None:
        """Take one step down the gradient of a loss; one that is not finite is passed over.

        `complete` may change the gradients of the parameters before the step.
        """
        if self.adam is None or not loss.isfinite():
            return
        if not loss.requires_grad:
            reason = "no gradient reaches the parameters: the model's forward pass disables gradients"
            raise UnsuitableModel(f"{reason}; use method='bn', or let it compute them")
        self.adam.zero_grad()
        torch.autograd.backward(loss)
        if complete is not None:
            complete(self.adam.param_groups[0]["params"])
        self.adam.step()
        self.adam.zero_grad()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the moments and step counts."""
        return {} if self.adam is None else self.adam.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        if self.adam is not None:
            self.adam.load_state_dict(copy.deepcopy(state))  # torch would go on writing into the state itself

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for moments in self.adam.state.values() if self.adam else ():
            for key in ("exp_avg", "exp_avg_sq"):  # the step count stays on the host
                moments[key] = fn(moments[key])
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]
