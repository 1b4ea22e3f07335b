"""Adam inside the module tree, so that `state_dict()` and `.to()` of an adapter carry its moments."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel

Gradients = Sequence[Tensor | None]
"""The gradient of each parameter, None for one that took no part."""


class Adam(nn.Module):
    """torch's Adam without weight decay. With nothing to train (layers without affine parameters) a step does nothing.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> Adam([weight], lr=0.1).descend(weight.sum())
    >>> round(weight.item(), 3)
    0.9
    """

    skipped: Tensor

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float) -> None:
        super().__init__()
        trained = list(parameters)
        if any(p.dtype == torch.float16 for p in trained):
            raise UnsuitableModel("float16 parameters are too coarse to train; give the model in float32 or bfloat16")
        device = trained[0].device if trained else "cpu"
        self.register_buffer("skipped", torch.zeros((), device=device), persistent=False)
        self.adam = torch.optim.Adam(trained, lr=lr, betas=(0.9, 0.999), fused=True) if trained else None

    def descend(self, loss: Tensor, complete: Callable[[Gradients], Gradients] | None = None) -> None:
        """Take one step down the gradient of a loss; one that is not finite is skipped and counted.

        `complete` may change the gradients before the step.

        Nothing here waits for the device: that the loss is not finite is told to the kernel, not to the host.
        """
        if self.adam is None:
            return
        if not loss.requires_grad:
            reason = "no gradient reaches the parameters: the model's forward pass disables gradients"
            raise UnsuitableModel(f"{reason}; use method='bn', or let it compute them")
        gradients = self.gradients(loss)
        self.step(gradients if complete is None else complete(gradients), loss)

    def gradients(self, loss: Tensor) -> Gradients:
        """The gradient of each parameter."""
        return () if self.adam is None else torch.autograd.grad(loss, self._group["params"], allow_unused=True)

    def step(self, gradients: Gradients, loss: Tensor) -> None:
        """Take one step along gradients, unless the loss they come from is not finite."""
        if self.adam is None:
            return
        group = self._group
        for parameter, gradient in zip(group["params"], gradients, strict=True):
            parameter.grad = None if gradient is None else _laid_out_as(parameter, gradient)
        bad = loss.detach().isfinite().logical_not().float()
        self.skipped.add_(bad)
        self.adam.found_inf = bad  # type: ignore[attr-defined]
        group["capturable"] = loss.is_cuda and torch.cuda.is_current_stream_capturing()
        self.adam.step()
        self.adam.zero_grad()
        group["capturable"] = False

    @property
    def _group(self) -> dict[str, Any]:
        """The only parameter group."""
        assert self.adam is not None
        group: dict[str, Any] = self.adam.param_groups[0]
        return group

    def get_extra_state(self) -> dict[str, Any]:
        """Return the moments and step counts."""
        return {} if self.adam is None else self.adam.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        if self.adam is not None:
            self.adam.load_state_dict(copy.deepcopy(state))  # torch would go on writing into the state itself

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for moments in self.adam.state.values() if self.adam else ():
            for key, tensor in moments.items():
                moments[key] = tensor.to(fn(tensor).device)  # squares of gradients would vanish in float16
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def match_precision(self) -> None:
        """Give the moments the precision that the parameters have now, and count in float32."""
        self.skipped = self.skipped.float()
        for parameter, moments in self.adam.state.items() if self.adam else ():
            for key in ("exp_avg", "exp_avg_sq"):
                moments[key] = moments[key].to(parameter.dtype)


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's own order in memory, which a fused kernel relies on."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
