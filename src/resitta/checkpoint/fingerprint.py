"""Digests of tensors: which model an adapter was made for, and which weights a run had."""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property

import torch
from torch import Tensor, nn


def digest_tensors(tensors: Iterable[tuple[str, Tensor]], *, types: bool = True) -> str:
    """SHA-256 over names, types (unless `types` is false) and values, independent of device and memory layout."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype}\n".encode() if types else name.encode())
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()


def raw_bytes(tensor: Tensor) -> memoryview:
    """The values of a tensor in memory order, as bytes."""
    if not tensor.numel():
        return memoryview(b"")  # an empty tensor may have strides that no view of bytes can have
    data: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return data


class Fingerprint:
    """Identifies a model by its tensors; computed once, since the model under an adapter does not change."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @cached_property
    def structure(self) -> str:
        """A digest of the names and shapes of the parameters and buffers."""
        shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in self._tensors()]
        return hashlib.sha256("\n".join(shapes).encode()).hexdigest()

    @cached_property
    def content(self) -> str:
        """A digest of the types and values of the parameters and buffers."""
        return digest_tensors(self._tensors())

    @cached_property
    def in_any_precision(self) -> str:
        """A digest of names, shapes and values that stays the same when the model is converted to float64 or bfloat16.

        Numbers count as rounded to bfloat16.
        """
        rounded = ((name, t.bfloat16() if t.is_floating_point() else t) for name, t in self._tensors())
        return digest_tensors([("structure " + self.structure, torch.empty(0)), *rounded])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
