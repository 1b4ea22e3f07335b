"""What the tests of states share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 10, 10, generator=torch.Generator().manual_seed(seed))


def identical(one: Any, other: Any) -> bool:
    """Whether two nested states are equal bit for bit, types included."""
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and type(one) is type(other) and all(map(identical, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.fixture(name="images")
def images_fixture() -> Callable[..., Tensor]:
    return images


@pytest.fixture(name="identical")
def identical_fixture() -> Callable[[Any, Any], bool]:
    return identical
