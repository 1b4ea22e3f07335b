"""Optimizers inside the module tree, so that `state_dict()` and `.to()` of an adapter carry their moments."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel

Gradients = Sequence[Tensor | None]
"""The gradient of each parameter, None for an unused one."""
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes a fused torch optimizer: only those can skip a step without synchronising with the device."""


class Optimizer(nn.Module):
    """A fused optimizer of torch's. With nothing to train (layers without affine parameters) a step does nothing."""

    skipped: Tensor
    moments: ClassVar[tuple[str, ...]]
    """What torch's optimizer keeps of a parameter in the parameter's own precision."""

    def __init__(self, parameters: Iterable[nn.Parameter], make: Make) -> None:
        super().__init__()
        trained = list(parameters)
        if any(p.dtype == torch.float16 for p in trained):
            raise UnsuitableModel("float16 parameters are too coarse to train; give the model in float32 or bfloat16")
        device = trained[0].device if trained else "cpu"
        self.register_buffer("skipped", torch.zeros((), device=device), persistent=False)
        self.inner = make(trained) if trained else None

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that a step moves."""
        return [] if self.inner is None else list(self._group["params"])

    def descend(
        self,
        loss: Tensor,
        complete: Callable[[Gradients], Gradients] | None = None,
        when: Tensor | None = None,
    ) -> None:
        """Take one step down the gradient of a loss; one that is not finite is skipped and counted.

        `complete` may change the gradients before the step. Where the flag `when` is false, no step is taken.

        Nothing here waits for the device: the kernel skips the step itself where the loss is not finite.
        """
        if self.inner is None:
            return
        gradients = self.gradients(loss)
        self.step(gradients if complete is None else complete(gradients), loss, when)

    def gradients(self, loss: Tensor, along: Tensor | None = None) -> Gradients:
        """The gradient of each parameter; for logits in the place of a loss, that of Σ `along` · logits."""
        if self.inner is None:
            return ()
        if not loss.requires_grad:
            reason = "no gradient reaches the parameters: the model's forward pass disables gradients"
            own = "in a method of your own, train a fork that owns parameters, network.fork('affine')"
            raise UnsuitableModel(f"{reason}; use method='bn', or let it compute them; {own}")
        gradients: Gradients = torch.autograd.grad(loss, self._group["params"], along, allow_unused=True)
        return gradients

    def step(self, gradients: Gradients, loss: Tensor, when: Tensor | None = None) -> None:
        """Take one step along gradients, unless the loss they come from is not finite or the flag `when` is false."""
        if self.inner is None:
            return
        for parameter, gradient in zip(self._group["params"], gradients, strict=True):
            parameter.grad = None if gradient is None else _laid_out_as(parameter, gradient)
        bad = loss.detach().isfinite().logical_not()
        self.skipped.add_(bad)
        self.inner.found_inf = (bad if when is None else bad | ~when).float()  # type: ignore[attr-defined]
        self._advance(loss)
        self.inner.zero_grad()

    @torch.no_grad()
    def forget(self, when: Tensor) -> None:
        """Begin again as if no step had been taken where the flag `when` is true; without waiting for the device."""
        for kept in self.inner.state.values() if self.inner else ():
            for key in kept.keys() & {*self.moments, "step"}:
                kept[key].masked_fill_(when, 0.0)

    def _advance(self, loss: Tensor) -> None:
        """Let torch's optimizer take the step."""
        assert self.inner is not None
        self.inner.step()

    @property
    def _group(self) -> dict[str, Any]:
        """The only parameter group."""
        assert self.inner is not None
        group: dict[str, Any] = self.inner.param_groups[0]
        return group

    def get_extra_state(self) -> dict[str, Any]:
        """Return the moments and step counts."""
        return {} if self.inner is None else self.inner.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        if self.inner is not None:
            self.inner.load_state_dict(copy.deepcopy(state))  # torch would keep writing into the state itself

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for kept in self.inner.state.values() if self.inner else ():
            for key, tensor in kept.items():
                kept[key] = tensor.to(fn(tensor).device)  # squares of gradients would vanish in float16
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def match_precision(self) -> None:
        """Give the moments the precision that the parameters have now, and count in float32."""
        self.skipped = self.skipped.float()
        for parameter, kept in self.inner.state.items() if self.inner else ():
            for key in self.moments:
                kept[key] = kept[key].to(parameter.dtype)


class Adam(Optimizer):
    """torch's Adam without weight decay.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> Adam([weight], lr=0.1).descend(weight.sum())
    >>> round(weight.item(), 3)
    0.9
    """

    moments = ("exp_avg", "exp_avg_sq")

    def __init__(self, parameters: Iterable[nn.Parameter], *, lr: float) -> None:
        super().__init__(parameters, partial(torch.optim.Adam, lr=lr, betas=(0.9, 0.999), fused=True))

    @property
    def adam(self) -> torch.optim.Optimizer | None:
        """Torch's own Adam, None with nothing to train."""
        return self.inner

    def _advance(self, loss: Tensor) -> None:
        """Count steps on the device only while they are recorded."""
        self._group["capturable"] = loss.is_cuda and torch.cuda.is_current_stream_capturing()
        super()._advance(loss)
        self._group["capturable"] = False


class SGD(Optimizer):
    """Stochastic gradient descent, as torch's SGD without dampening.

    With gradient g, momentum m and weight decay w: v <- m v + (g + w θ), θ <- θ - lr v; with `nesterov`,
    θ <- θ - lr (g + w θ + m v).

    >>> weight = nn.Parameter(torch.ones(1))
    >>> sgd = SGD([weight], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     sgd.descend(weight.sum())
    >>> round(weight.item(), 3)  # 1 - 0.1 · 1 - 0.1 · 1.9
    0.71
    """

    moments = ("momentum_buffer",)

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(parameters, partial(_at_rest, options=options))


Kind = Literal["sgd", "adam"]


def make_optimizer(kind: Kind, parameters: Iterable[nn.Parameter], *, lr: float, momentum: float) -> Optimizer:
    """An optimizer by name; `momentum` is that of SGD."""
    return SGD(parameters, lr=lr, momentum=momentum) if kind == "sgd" else Adam(parameters, lr=lr)


def _at_rest(parameters: list[nn.Parameter], options: dict[str, Any]) -> torch.optim.SGD:
    """torch's SGD with velocities of zero; its own would stay undefined if the first loss were not finite."""
    sgd = torch.optim.SGD(parameters, **options, fused=True)
    for parameter in parameters if options["momentum"] else ():
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's memory layout, as fused kernels require."""
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
