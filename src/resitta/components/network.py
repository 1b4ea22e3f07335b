"""The caller's classifier as methods see it: images in, logits out, frozen weights shared with the caller."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from resitta.components.bn_layers import AdaptiveBN, BatchNorm, bn_layers, replace_layers
from resitta.errors import BadImages, BadOutput, UnsuitableModel

Trained = Literal["none", "affine", "all"]
Output = str | int | Callable[[Any], Tensor] | None
View = Callable[[Tensor], Tensor]


class Network(nn.Module):
    """One network on the caller's architecture, always in eval mode: no dropout, statistics move only on purpose.

    `fork` makes further networks that share every parameter they do not train.

    >>> network = Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5)))
    >>> student = network.fork("affine")
    >>> [name for name, _ in student.named_parameters()]
    ['model.2.weight', 'model.2.bias']
    >>> student.model[1].weight.data_ptr() == network.model[1].weight.data_ptr()
    True
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        output: Output = None,
        normalized: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        self.model = share(model, own=())
        self.output = output
        mean, std = normalized or (None, None)
        self.register_buffer("mean", _channels(mean, self.device), persistent=False)
        self.register_buffer("std", _channels(std, self.device), persistent=False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode, whatever the caller's `adapter.train()` asks for."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self._example().device

    @property
    def dtype(self) -> torch.dtype:
        """The precision it computes in."""
        return self._example().dtype

    def _example(self) -> Tensor:
        tensors = (*self.model.parameters(), *self.model.buffers())
        return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))

    def fork(self, train: Trained = "none") -> "Network":
        """Copy the architecture, own the parameters to be trained, share the rest."""
        twin = copy.copy(self)
        twin._modules = {}
        twin._buffers = dict(self._buffers)
        twin.model = share(self.model, own=self.trained_names(train), borrow_as_buffers=True)
        return twin.eval()

    def with_bn(self, wrap: Callable[[BatchNorm], AdaptiveBN]) -> Self:
        """Wrap every BatchNorm layer of a fork."""
        self.model = replace_layers(self.model, BatchNorm, lambda layer: wrap(cast(BatchNorm, layer)))
        return self

    def all_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return the parameters, owned and shared, with names that agree between forks wrapped alike."""
        seen: set[int] = set()  # a tied weight has several names and counts once
        for prefix, module in self.model.named_modules():
            for name in (*module._parameters, *_borrowed(module)):
                tensor = getattr(module, name)
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}.{name}".lstrip("."), tensor

    def trained_names(self, train: Trained) -> list[str]:
        """Name the parameters that a way of training moves."""
        if train == "all":
            return [name for name, p in self.model.named_parameters() if p.is_floating_point()]
        if train == "none":
            return []
        affine = {id(p) for _, layer in bn_layers(self.model) for p in (layer.weight, layer.bias)}
        return [name for name, p in self.model.named_parameters() if id(p) in affine]

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, N×C."""
        try:
            answer = self.model(images)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise BadImages(f"the model refused images of shape {tuple(images.shape)}: {reason}") from error
        return _logits(answer, self.output, len(images))

    def augment(self, images: Tensor, view: View) -> Tensor:
        """Look at images through a view, which is made in [0, 1] space whatever normalisation the caller uses."""
        if self.mean is None or self.std is None:
            seen = view(images.clone())  # a view may write in place, into its own copy
        else:
            seen = ((view(images * self.std + self.mean) - self.mean) / self.std).to(images.dtype)
        if seen.shape != images.shape:
            raise BadImages(f"the view turned {tuple(images.shape)} into {tuple(seen.shape)}; it must keep the shape")
        return seen

    def export(self) -> nn.Module:
        """Return an ordinary copy of the caller's model with this network's statistics and parameters."""
        plain = copy.deepcopy(self.model)
        plain = replace_layers(plain, AdaptiveBN, lambda wrapped: cast(AdaptiveBN, wrapped).unwrap())
        parameters: dict[Tensor, nn.Parameter] = {}
        for module in plain.modules():
            _give_back(module, parameters)
        for parameter in plain.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return plain.eval()


def share(model: nn.Module, *, own: Sequence[str], borrow_as_buffers: bool = False) -> nn.Module:
    """Copy a model's architecture and buffers; own copies of the parameters in `own`, the others share memory.

    Buffers are always copied, since a forward pass may change them; parameters never change in one.
    With `borrow_as_buffers` the shared parameters become buffers outside `state_dict`, so that
    `parameters()` and `state_dict()` hold exactly what the copy owns.
    """
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = _twin(parameter, owned=name in own, as_buffer=borrow_as_buffers)
    try:
        twin = copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        raise UnsuitableModel(f"{type(model).__name__} cannot be copied ({error}); give it a __deepcopy__") from error
    for module in twin.modules():
        _settle(module)
    return twin


def _twin(parameter: nn.Parameter, *, owned: bool, as_buffer: bool) -> Tensor:
    data = parameter.detach()
    if owned:
        return nn.Parameter(data.clone())
    if data.is_inference():  # such a tensor can take no part in training, not even as a constant
        data = data.clone()
    return data if as_buffer else nn.Parameter(data, requires_grad=False)


def _settle(module: nn.Module) -> None:
    """Move borrowed tensors from the parameters of a module to its non-persistent buffers."""
    borrowed = [n for n, t in module._parameters.items() if t is not None and not isinstance(t, nn.Parameter)]
    for name in borrowed:
        tensor = module._parameters.pop(name)
        module.register_buffer(name, tensor, persistent=False)
    module.__dict__["_borrowed"] = tuple(borrowed)


def _borrowed(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's parameters that `_settle` made buffers."""
    names: tuple[str, ...] = module.__dict__.get("_borrowed", ())
    return names


def _give_back(module: nn.Module, parameters: dict[Tensor, nn.Parameter]) -> None:
    """Undo `_settle`: make the borrowed tensors ordinary parameters again; tied ones stay tied through `parameters`."""
    borrowed = {name: module.__dict__["_buffers"].pop(name) for name in _borrowed(module)}
    module._non_persistent_buffers_set.difference_update(borrowed)
    for name, tensor in borrowed.items():
        parameters.setdefault(tensor, nn.Parameter(tensor, requires_grad=False))
        module.register_parameter(name, parameters[tensor])
    module.__dict__.pop("_borrowed", None)


def _channels(values: Sequence[float] | None, device: torch.device) -> Tensor | None:
    return None if values is None else torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


def _logits(answer: Any, output: Output, n: int) -> Tensor:
    """Select the logits from what the model returned and insist on N×C."""
    picked = _pick(answer, output)
    if not isinstance(picked, Tensor):
        raise BadOutput(f"the model returned {_describe(picked)}, not logits; select them with output=")
    if picked.ndim != 2 or picked.shape[0] != n or picked.shape[1] < 2 or not picked.is_floating_point():
        found = f"{tuple(picked.shape)} of {picked.dtype}"
        raise BadOutput(f"the model must return float logits of shape ({n}, classes), found {found}; see output=")
    return picked


def _pick(answer: Any, output: Output) -> Any:
    if output is None:
        return answer
    if callable(output):
        return output(answer)
    try:
        by_key = isinstance(answer, Mapping) or isinstance(output, int)
        return answer[output] if by_key else getattr(answer, str(output))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadOutput(f"output={output!r} selects nothing from {_describe(answer)}") from error


def _describe(answer: Any) -> str:
    keys = f" with keys {sorted(map(str, answer))}" if isinstance(answer, Mapping) else ""
    return f"a {type(answer).__name__}{keys}"
