"""What the tests of the guards share: an adapter with its events, and images that are no pure noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resitta import Adapter, Guard, adapt
from resitta.monitor.events import Event, GuardFired

Watched = tuple[Adapter, list[GuardFired]]
EAGER: dict[str, Any] = {"window": 64, "screen": False}
"""Judges soon, and lets everything into the memory."""


@pytest.fixture
def watched(model: nn.Module) -> Callable[..., Watched]:
    """Make an adapter with a guard, and the list of what the guard reports."""

    def make(method: str = "resitta", guard: Guard | bool = True, **options: Any) -> Watched:
        adapter, fired = adapt(model, method, guard=guard, **options), list[GuardFired]()

        def note(event: Event) -> None:
            if isinstance(event, GuardFired):
                fired.append(event)

        adapter.listen(note)
        return adapter, fired

    return make


def pictures(n: int, size: int = 16, seed: int = 0) -> Tensor:
    """Smooth random pictures, whose pixels depend on their neighbours."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 5, 5, generator=generator)
    return nn.functional.interpolate(coarse, size=(size, size), mode="bicubic").clamp(0, 1)
