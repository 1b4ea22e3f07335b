"""Frozen weights in bfloat16, cast once instead of in every pass."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

OPERATIONS = {F.conv1d, F.conv2d, F.conv3d, F.linear}


class Bf16Weights(nn.Module):
    """A cache of bfloat16 copies of frozen weights, in the memory format that convolutions are fastest in.

    It is a stateless module, so that moving its parent clears the cache.

    >>> weight, casts = torch.ones(1, 2), Bf16Weights()
    >>> with casts.of([weight]):
    ...     F.linear(torch.ones(1, 2, dtype=torch.bfloat16), weight)
    tensor([[2.]], dtype=torch.bfloat16)
    >>> len(casts)
    1
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[Any, Tensor] = {}

    def __len__(self) -> int:
        """How many copies there are."""
        return len(self._copies)

    @contextmanager
    def of(self, frozen: Iterable[Tensor], *, channels_last: bool = False) -> Iterator[None]:
        """Inside, convolutions and linear layers use the cached copies of these weights."""
        places = {weight.data_ptr() for weight in frozen}

        def cast(weight: Tensor) -> Tensor:
            if weight.data_ptr() not in places or weight.dtype == torch.float64:  # which autocast leaves alone, too
                return weight
            layout = torch.channels_last if channels_last and weight.ndim == 4 else torch.contiguous_format
            return self._copy(weight, layout)

        with _Casting(cast):
            yield

    def _copy(self, weight: Tensor, layout: torch.memory_format) -> Tensor:
        key = weight.data_ptr(), weight.shape, weight.stride(), layout
        if key not in self._copies:
            if weight.is_cuda and torch.cuda.is_current_stream_capturing():  # a copy made there exists in replays only
                return weight
            copied = weight.to(torch.bfloat16, memory_format=layout, copy=True)
            if weight.is_cuda:  # other streams will use it as well
                torch.cuda.current_stream(weight.device).synchronize()
            self._copies.setdefault(key, copied)
        return self._copies[key]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Bf16Weights":
        self._copies = {}
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle everything but the copies."""
        return {**self.__dict__, "_copies": {}}


class _Casting(TorchFunctionMode):
    """Gives operations another tensor for their weight."""

    def __init__(self, cast: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.cast = cast

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation."""
        kwargs = dict(kwargs or {})
        if func in OPERATIONS and len(args) > 1:
            args = (args[0], self.cast(args[1]), *args[2:])
        elif func in OPERATIONS:
            kwargs["weight"] = self.cast(kwargs["weight"])
        return func(*args, **kwargs)
