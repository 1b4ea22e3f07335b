"""Copies of a model that share memory: each owns what it trains, all borrow the rest."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from resitta.errors import UnsuitableModel
from resitta.norm.affine_layers import affine_layers
from resitta.norm.bn_layers import HALF, bn_layers
from resitta.norm.float32_layers import compute_as_given, compute_in_float32, learning_layers


def share(model: nn.Module, *, own: Collection[str], borrow_as_buffers: bool = False) -> nn.Module:
    """Copy a model's architecture and buffers; own copies of the parameters in `own`, the others share memory.

    Buffers are always copied, since a forward pass may change them; parameters never change in one.
    With `borrow_as_buffers` the shared parameters become buffers outside `state_dict`, so that
    `parameters()` and `state_dict()` hold exactly what the copy owns.

    >>> model = nn.Linear(2, 2)
    >>> twin = share(model, own=["bias"], borrow_as_buffers=True)
    >>> [name for name, _ in twin.named_parameters()], twin.weight.data_ptr() == model.weight.data_ptr()
    (['bias'], True)
    """
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = _twin(parameter, owned=name in own, as_buffer=borrow_as_buffers)
    try:
        twin = copy.deepcopy(model, memo)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        advice = "pass the plain module (model.module of a DistributedDataParallel), or give it a __deepcopy__"
        raise UnsuitableModel(f"{type(model).__name__} cannot be copied ({reason}); {advice}") from error
    for module in twin.modules():
        _settle(module)
    return twin


def tie(module: nn.Module, to: nn.Module) -> None:
    """Let a copy use the very parameters of another copy of the same model; its buffers stay its own.

    >>> one, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    >>> tie(one, to=other)
    >>> one.weight is other.weight, one.running_mean is other.running_mean
    (True, False)
    """
    for mine, its in zip(module.modules(), to.modules(), strict=True):
        mine._parameters.update(its._parameters)


def unshare(model: nn.Module) -> nn.Module:
    """Turn a copy's borrowed tensors, of which it must hold copies by now, into ordinary parameters again."""
    parameters: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        _give_back(module, parameters)
    return model


def borrowed(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's parameters that `share` made buffers."""
    names: tuple[str, ...] = module.__dict__.get("_borrowed", ())
    return names


def all_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a copy, owned and borrowed; a tied one has several names and counts once."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name in (*module._parameters, *borrowed(module)):
            tensor = getattr(module, name)
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{prefix}.{name}".lstrip("."), tensor


def once_per_tensor(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Apply a function once to tensors that share memory and give all of them the same result.

    >>> weight = torch.ones(2)
    >>> double = once_per_tensor(torch.Tensor.double)
    >>> double(weight).data_ptr() == double(weight.detach()).data_ptr()
    True
    """
    done: dict[Any, tuple[Tensor, Tensor]] = {}

    def once(tensor: Tensor) -> Tensor:
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.data_ptr() == 0:
            return fn(tensor)
        if place not in done:  # the old tensor stays alive, so that its address stays unique
            done[place] = (tensor.detach(), fn(tensor.detach()))
        return done[place][1]

    return once


def raise_norm_precision(model: nn.Module) -> None:
    """Compute norm layers of half precision in float32: moving averages and Adam lose small steps otherwise.

    These are all BatchNorm layers, and of the other kinds those with parameters of their own.
    """
    for _, layer in bn_layers(model):
        if not HALF.isdisjoint(_precisions(layer)):
            layer.float()
    for other in learning_layers(model):
        if not HALF.isdisjoint(_precisions(other)):
            compute_in_float32(other)


def match_norm_precision(model: nn.Module, like: nn.Module) -> nn.Module:
    """Give norm layers the precision that they have in another model of the same architecture."""
    for name, layer in (*bn_layers(model), *affine_layers(model)):
        layer.to(next(_precisions(like.get_submodule(name)), None))
    return compute_as_given(model)


def _precisions(module: nn.Module) -> Iterator[torch.dtype]:
    """The precisions of the floating-point tensors."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return (tensor.dtype for tensor in tensors if tensor.is_floating_point())


def _twin(parameter: nn.Parameter, *, owned: bool, as_buffer: bool) -> Tensor:
    data = parameter.detach()
    if owned:
        return nn.Parameter(data.clone())
    if data.is_inference():  # autograd refuses inference tensors, even as constants
        data = data.clone()
    return data if as_buffer else nn.Parameter(data, requires_grad=False)


def _settle(module: nn.Module) -> None:
    """Move borrowed tensors from the parameters of a module to its non-persistent buffers."""
    names = [n for n, t in module._parameters.items() if t is not None and not isinstance(t, nn.Parameter)]
    for name in names:
        tensor = module._parameters.pop(name)
        module.register_buffer(name, tensor, persistent=False)
    module.__dict__["_borrowed"] = tuple(names)


def _give_back(module: nn.Module, parameters: dict[Tensor, nn.Parameter]) -> None:
    """Undo `_settle`; tied parameters stay tied through `parameters`."""
    tensors = {name: module.__dict__["_buffers"].pop(name) for name in borrowed(module)}
    module._non_persistent_buffers_set.difference_update(tensors)
    for name, tensor in tensors.items():
        parameters.setdefault(tensor, nn.Parameter(tensor, requires_grad=False))
        module.register_parameter(name, parameters[tensor])
    module.__dict__.pop("_borrowed", None)
