"""Which model an adapter stands on: digests of its tensors, since the state of an adapter is useless on any other."""

import hashlib
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor, nn


class Fingerprint:
    """What tells a model from others; taken once, since the model under an adapter does not change.

    >>> model = nn.Linear(2, 3)
    >>> before = Fingerprint(model).content
    >>> _ = nn.init.zeros_(model.bias)
    >>> Fingerprint(model).content == before
    False
    """

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
        digest = hashlib.sha256()
        for name, tensor in self._tensors():
            digest.update(f"{name} {tensor.dtype}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
