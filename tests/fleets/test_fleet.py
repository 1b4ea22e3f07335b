"""Streams of a fleet behave as adapters of their own, whatever the others do."""

import copy
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream
from torch import Tensor, nn

import resitta
from resitta.checkpoint.tree import same
from resitta.conformance import tiny_network
from resitta.errors import BadImages, BadSetting, BadState, NonFiniteImages, StreamFailure
from resitta.events import GuardFired, Updated
from resitta.fleets import StreamEvent
from resitta.fleets.fleet import ROOM

QUICK: dict[str, Any] = {"capacity": 8, "update_every": 8}
"""Settings of ResiTTA and RoTTA for short streams."""


def batches(streams: int, length: int, each: int = 2) -> list[tuple[Tensor, list[str]]]:
    """Mixed batches: each holds `each` images of every stream, in turn; streams differ in their images."""
    own = [stream(length * each, seed=number) for number in range(streams)]
    names = [f"s{number}" for number in range(streams)] * each
    return [
        (torch.cat([own[number][step * each + k : step * each + k + 1] for k in range(each) for number in range(streams)]), names)
        for step in range(length)
    ]


def separately(make: Callable[[], resitta.Adapter], fed: list[tuple[Tensor, list[str]]]) -> tuple[list[Tensor], dict[str, Any]]:
    """The logits of one adapter per stream, in the order of the batches."""
    adapters: dict[str, resitta.Adapter] = {}
    logits = []
    for images, names in fed:
        answers: list[Tensor] = [torch.empty(0)] * len(names)
        for name in dict.fromkeys(names):
            places = [index for index, other in enumerate(names) if other == name]
            adapter = adapters.setdefault(name, make()) if name not in adapters else adapters[name]
            for place, answer in zip(places, adapter(images[places]), strict=True):
                answers[place] = answer
        logits.append(torch.stack(answers))
    return logits, adapters


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("resitta", QUICK),
        ("resitta", {**QUICK, "norm": "rbn", "intransigent": True}),
        ("resitta", {**QUICK, "norm": "adbn"}),
        ("resitta", {**QUICK, "reset_on_shift": 0.1, "reset_every": 7}),
        ("resitta", {**QUICK, "label_prior": "temporal", "feedback": True}),
        ("resitta", {**QUICK, "guard": True}),
        ("resitta", {**QUICK, "train": "all"}),
        ("rotta", QUICK),
        ("tribe", {}),
        ("note", {}),
        ("tent", {}),
        ("source", {}),
    ],
)
def test_without_a_budget_every_stream_is_an_adapter_of_its_own(method: str, settings: dict[str, Any]) -> None:
    model, fed = small_network(), batches(streams=3, length=12)
    expected, adapters = separately(lambda: resitta.adapt(model, method, **settings), fed)
    fleet = resitta.fleet(model, method, updates_per_call=None, **settings)
    for (images, names), logits in zip(fed, expected, strict=True):
        torch.testing.assert_close(fleet(images, names), logits, rtol=1e-5, atol=1e-5)
    for name, adapter in adapters.items():
        mine, its = fleet[name].adapter, adapter
        assert (mine.samples, mine.batches, mine.learner.updates) == (its.samples, its.batches, its.learner.updates)
    assert method in ("source", "tent") or fleet["s0"].stats.updates >= 1
