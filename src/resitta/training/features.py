"""Features of a classifier: what its head sees."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from resitta.errors import UnknownName, UnsuitableModel, near
from resitta.training.network import Network


def penultimate(
    network: Network, images: Tensor, where: str | Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the logits and the N×D features of a batch, in one forward pass.

    `where` None: the input of the head, which is the last Linear or 1×1 convolution to run. A name: the output of that
    module. A callable: images -> features. Feature maps are averaged over their positions.

    >>> import torch
    >>> network = Network(nn.Sequential(nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 2)))
    >>> [tuple(part.shape) for part in penultimate(network, torch.rand(4, 3, 8, 8))]
    [(4, 2), (4, 7)]
    """
    if callable(where):
        return network(images), _pooled(where(images), channels_last=False)
    seen: list[Any] = []
    hooks = [module.register_forward_hook(_keep(seen, where is None)) for module in _watched(network, where)]
    try:
        logits = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen or not isinstance(seen[-1], Tensor):
        wanted = "Linear or 1×1 convolution ran as a head" if where is None else f"tensor came out of module {where!r}"
        raise UnsuitableModel(f"no {wanted}; name another module with features=")
    return logits, seen[-1]


def _watched(network: Network, where: str | None) -> list[nn.Module]:
    if where is None:
        return [module for module in network.model.modules() if _is_head(module)]
    modules = dict(network.model.named_modules())
    if where not in modules:
        raise UnknownName(f"the model has no module {where!r}. {near(where, modules)}")
    return [modules[where]]


def _is_head(module: nn.Module) -> bool:
    pointwise = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and set(module.kernel_size) == {1}
    return isinstance(module, nn.Linear) or pointwise


def _keep(seen: list[Any], take_input: bool) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        kept = inputs[0] if take_input else output
        is_tensor = isinstance(kept, Tensor)
        seen[:] = [_pooled(kept, channels_last=isinstance(module, nn.Linear)) if is_tensor else kept]

    return hook


def _pooled(features: Tensor, *, channels_last: bool) -> Tensor:
    """Average over positions; a Linear layer has its channels last, a convolution after the batch."""
    if features.ndim <= 2:
        return features
    return features.flatten(1, -2).mean(dim=1) if channels_last else features.flatten(2).mean(dim=2)
