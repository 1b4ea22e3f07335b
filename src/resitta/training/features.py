"""Features of a classifier: what its head sees; and the head itself, where it is linear."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from resitta.errors import UnknownName, UnsuitableModel, near
from resitta.training.classes import UNUSUAL, probe
from resitta.training.network import Network

AGREE = 0.02
"""How far the logits may be from those of the head, as a share of their size: convolutions may compute in TF32."""


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
    logits, _, features = _run(network, images, _watched(network, where), take_input=where is None)
    if not isinstance(features, Tensor):
        wanted = "Linear or 1×1 convolution ran as a head" if where is None else f"tensor came out of module {where!r}"
        raise UnsuitableModel(f"no {wanted}; name another module with features=")
    return logits, features


class Head(NamedTuple):
    """A linear head: from N×D features to N×C logits, features Wᵀ + b."""

    weight: Tensor
    """C×D."""
    bias: Tensor
    """C; zeros for a head without a bias."""

    def __call__(self, features: Tensor) -> Tensor:
        """Return the logits of features."""
        return F.linear(features.to(self.weight), self.weight, self.bias)


def find_head(network: Network, name: str | None = None) -> str:
    """Return the name of a network's head: as given, or the last Linear or 1×1 convolution to run on grey images.

    The logits must be those of the head, up to an average over positions: a model that changes them afterwards, by a
    temperature or by another layer, has no linear head.

    >>> find_head(Network(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))))
    '2'
    """
    found = probe(network, partial(_last_head, name=name))
    if found is not None:
        return found
    if name is None:
        raise UnsuitableModel(f"the head of this model is not known: {UNUSUAL}; name the head with head=")
    head_of(network, name)
    return name


def head_of(network: Network, name: str) -> Head:
    """Return the head of this name, with its present weights.

    >>> import torch
    >>> linear = nn.Linear(3, 2)
    >>> head = head_of(Network(nn.Sequential(nn.Flatten(), linear)), "1")
    >>> torch.equal(head(torch.ones(4, 3)), linear(torch.ones(4, 3)))
    True
    """
    module = _named(network, name)
    if not _is_head(module):
        raise UnsuitableModel(f"module {name!r} is a {type(module).__name__}; {LINEAR}")
    weight: Tensor = module.weight.flatten(1)  # type: ignore[operator]
    bias: Tensor | None = module.bias  # type: ignore[assignment]
    return Head(weight, weight.new_zeros(len(weight)) if bias is None else bias)


LINEAR = "the head must be a Linear or an ungrouped 1×1 convolution; name it with head="


def with_features(network: Network, images: Tensor, head: str) -> tuple[Tensor, Tensor]:
    """Return the logits and the N×D features that the head of this name sees, in one forward pass.

    >>> import torch
    >>> network = Network(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)))
    >>> logits, features = with_features(network, torch.rand(4, 3, 8, 8), "2")
    >>> torch.equal(logits, head_of(network, "2")(features))
    True
    """
    logits, _, features = _run(network, images, [_named(network, head)], take_input=True)
    if not isinstance(features, Tensor):
        raise UnsuitableModel(f"module {head!r} did not run on a tensor; name the head with head=")
    return logits, features


def _last_head(network: Network, images: Tensor, *, name: str | None) -> str:
    """The name of the head that ran last, provided that the logits are its own."""
    modules = _watched(network, None) if name is None else [_named(network, name)]
    logits, last, features = _run(network, images, modules, take_input=True)
    if last is None or not isinstance(features, Tensor):
        raise UnsuitableModel(f"no Linear or 1×1 convolution ran as a head; {LINEAR}")
    found: str = next(path for path, module in network.model.named_modules() if module is last)
    head = head_of(network, found)
    if head.weight.shape != (logits.shape[1], features.shape[1]) or not _agree(head(features), logits):
        reason = f"module {found!r} ran last, but the logits are not {type(last).__name__}'s own"
        raise UnsuitableModel(f"{reason}: the model changes them afterwards, or has another head; {LINEAR}")
    return found


def _agree(found: Tensor, logits: Tensor) -> bool:
    difference = (found.float() - logits.float()).abs().amax()
    return bool(difference <= AGREE * logits.float().abs().amax())


def _run(
    network: Network, images: Tensor, modules: list[nn.Module], *, take_input: bool
) -> tuple[Tensor, nn.Module | None, Any]:
    """The logits, and of these modules the last to run with its input or output, pooled."""
    seen: list[Any] = [None, None]
    hooks = [module.register_forward_hook(_keep(seen, take_input)) for module in modules]
    try:
        logits = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, *seen


def _watched(network: Network, where: str | None) -> list[nn.Module]:
    if where is None:
        return [module for module in network.model.modules() if _is_head(module)]
    return [_named(network, where)]


def _named(network: Network, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(network.model.named_modules())
    if name not in modules:
        raise UnknownName(f"the model has no module {name!r}. {near(name, modules)}")
    return modules[name]


def _is_head(module: nn.Module) -> bool:
    pointwise = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and set(module.kernel_size) == {1}
    return isinstance(module, nn.Linear) or pointwise


def _keep(seen: list[Any], take_input: bool) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        kept = inputs[0] if take_input else output
        is_tensor = isinstance(kept, Tensor)
        seen[:] = module, _pooled(kept, channels_last=isinstance(module, nn.Linear)) if is_tensor else kept

    return hook


def _pooled(features: Tensor, *, channels_last: bool) -> Tensor:
    """Average over positions; a Linear layer has its channels last, a convolution after the batch."""
    if features.ndim <= 2:
        return features
    return features.flatten(1, -2).mean(dim=1) if channels_last else features.flatten(2).mean(dim=2)
