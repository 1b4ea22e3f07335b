"""Services of many streams for tests, fed in step: each image is learned from before the next one is sent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import small_network, stream
from tests.serve.helpers import SIZE
from torch import Tensor

import resitta
from resitta.serve.fleet_service import FleetService
from resitta.serve.reader import Answer
from resitta.serve.settings import Limits
from resitta.serve.stream_rows import StreamRow

TOKEN_HOLDER = "token:0123"
QUICK: dict[str, Any] = {"capacity": 8, "update_every": 8}
Feed = list[tuple[str, Tensor]]
"""Names of streams, and images of each."""


def fleet_service(
    folder: Path, method: str = "resitta", *, limits: Limits | None = None, **options: Any
) -> FleetService:
    settings = {"autosave": None, **(QUICK if method == "resitta" else {}), **options}
    made = resitta.fleet(small_network(), method, folder=folder, **settings)
    return FleetService(made, size=SIZE, limits=limits or Limits(save_every=3600))


def send(service: FleetService, name: str, images: Tensor, client: str = TOKEN_HOLDER) -> Answer:
    """Send images of a stream, and wait until they are learned from."""
    answer = service.submit(images, client, name).result(20)
    settle(service)
    return answer


def settle(service: FleetService) -> None:
    service.learner.thread.settle()


def rows(service: FleetService) -> dict[str, StreamRow]:
    return {row.name: row for row in service.streams()}


def batches(names: str, count: int, each: int = 4) -> Feed:
    """Images of several streams in turn; streams differ."""
    own = {name: torch.split(stream(count * each, seed=ord(name)), each) for name in names}
    return [(name, own[name][number]) for number in range(count) for name in names]


def answers(service: FleetService, feed: Feed, of: str) -> list[Tensor]:
    """The logits of some streams, while all images are sent."""
    found = [(name, send(service, name, images).logits) for name, images in feed]
    return [logits for name, logits in found if name in of]


def replaced(feed: Feed, name: str, make: Callable[[Tensor], Tensor]) -> Feed:
    """The same with other images of one stream."""
    return [(other, make(images) if other == name else images) for other, images in feed]


def learning_fails(monkeypatch: pytest.MonkeyPatch, fleet: resitta.Fleet, name: str, step: str) -> None:
    """Let every step of a stream's learner fail."""

    def fail(*_: object) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(fleet[name].adapter.learner, step, fail)
