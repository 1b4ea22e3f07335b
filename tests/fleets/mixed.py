"""Mixed batches, and adapters of their own to compare with."""

from collections.abc import Callable
from typing import Any

import torch
from tests.conftest import stream
from torch import Tensor

import resitta
from resitta.fleets import StreamStats

QUICK: dict[str, Any] = {"capacity": 8, "update_every": 8}
"""Settings of ResiTTA and RoTTA for short streams."""
Fed = list[tuple[Tensor, list[str]]]


def batches(streams: int, length: int, each: int = 2) -> Fed:
    """Mixed batches: each holds `each` images of every stream, in turn; streams differ in their images."""
    own = torch.stack([stream(length * each, seed=number) for number in range(streams)], dim=1)
    names = [f"s{number}" for number in range(streams)] * each
    return [(images.flatten(0, 1), names) for images in torch.split(own, each)]


def separately(make: Callable[[], resitta.Adapter], fed: Fed) -> tuple[list[Tensor], dict[str, resitta.Adapter]]:
    """The logits of one adapter per stream, in the order of the batches."""
    adapters = {name: make() for name in fed[0][1]}
    logits = []
    for images, names in fed:
        answers = torch.empty(len(names), 5)
        for name, adapter in adapters.items():
            places = [index for index, other in enumerate(names) if other == name]
            answers[places] = adapter(images[places]).float()
        logits.append(answers)
    return logits, adapters


def states(fleet: resitta.Fleet) -> dict[str, dict[str, Any]]:
    return {name: fleet[name].adapter.state_dict() for name in fleet}


def rows(fleet: resitta.Fleet) -> list[StreamStats]:
    return [row for _, row in sorted(fleet.stats.items())]
