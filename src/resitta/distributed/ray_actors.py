"""The processes of a service on Ray: one writer that learns and saves, readers that follow it and predict.

A reader asks the writer again and again for what is new. While there is no writer, readers go on with what they have;
Ray starts a lost writer anew, which continues from its last snapshot, and the readers follow it there.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resitta.adapter import Adapter
from resitta.bench.executors import enter
from resitta.errors import require
from resitta.monitor.stats import Stats
from resitta.serve.events import Events, LogEntry
from resitta.serve.http_errors import Refused
from resitta.serve.learn_queue import Counters
from resitta.serve.published import Published, exported
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import Writer
from resitta.training.sharing import share

FOLLOW_EVERY = 0.1
"""Seconds between two looks of a reader at the writer."""

MakeAdapter = Callable[[], Adapter]
"""Builds the adapter, the same in every process."""


@dataclass(frozen=True)
class News:
    """A version of the state: the tensors in which it differs from the source model, and which writer it is from."""

    writer: str
    version: int
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Report:
    """What the writer tells about itself; `writer` is another name after a restart.

    `readers`: the version each reader last had.
    """

    writer: str
    version: int
    readers: dict[int, int]
    paused: bool
    counters: Counters
    stats: Stats
    events: list[LogEntry]
    failed_saves: int
    guard_fired: dict[str, int]
    clients: list[dict[str, Any]] = field(default_factory=list)
    muted: frozenset[str] = frozenset()


def changes(source: nn.Module, adapted: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model that are not those of the source: with BatchNorm training, a few per cent of them.

    >>> changes(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    {}
    """
    before = source.state_dict()
    return {name: t.cpu() for name, t in adapted.state_dict().items() if not torch.equal(t, before[name])}


def changed(source: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """The source model with some tensors replaced; the others are shared, and the source stays as it is.

    >>> changed(nn.Linear(1, 2), {"bias": torch.zeros(2)}).bias.tolist()
    [0.0, 0.0]
    """
    model = share(source, own=tensors.keys())
    model.load_state_dict(tensors, strict=False)
    return model.requires_grad_(False)


class WriterActor:
    """A `Writer` in a process of its own. Ray may call several of its methods at once."""

    def __init__(self, make: MakeAdapter, folder: Path, state: Path, limits: Limits) -> None:
        enter(folder)
        adapter = make()
        self.source = adapter.source.model
        self.writer = Writer(adapter, StateFolder(state, keep=limits.keep), limits, Events())
        self.name = os.urandom(8).hex()
        self.readers: dict[int, int] = {}
        self.writer.start()

    def offer(self, images: Any, clients: Sequence[str] | None = None) -> list[bool]:
        """Learn from images of some clients, an array, when their turn comes; return which are taken."""
        return self.writer.inbox.offer(torch.tensor(images), clients=clients)

    def news(self, reader: int, writer: str, version: int) -> News | None:
        """Return the newest state, or None if it is the one the reader has."""
        self.readers[reader] = version
        published = self.writer.published
        if (writer, version) == (self.name, published.version) or published.network is None:
            return None
        return News(self.name, published.version, changes(self.source, published.network.model))

    def report(self) -> Report:
        """Tell where the writer stands."""
        writer = self.writer
        counters, events = writer.inbox.counters, writer.events.newest()
        version, readers = writer.published.version, dict(self.readers)
        rest = (counters, writer.stats, events, writer.failed_saves, writer.guard_fired, writer.clients, writer.muted)
        return Report(self.name, version, readers, writer.inbox.paused, *rest)

    def do(self, task: str, *arguments: Any) -> tuple[Any, tuple[int, str] | None]:
        """Do a task of the `Writer`, in its turn; return its result, or the status and sentence of a refusal."""
        try:
            return self.writer.inbox.ask(partial(getattr(self.writer, task), *arguments)).result(), None
        except Refused as refused:  # it could not travel as it is
            return None, (refused.status, str(refused))

    def close(self) -> None:
        """Save and stop."""
        self.writer.close()


class ReaderActor:
    """Predicts with the newest state it has heard of."""

    def __init__(self, make: MakeAdapter, folder: Path, writer: str, number: int) -> None:
        enter(folder)
        adapter = make()
        self.source, self.device = adapter.source, adapter.source.device
        self.ray = require("ray", "dist")
        self.writer = self.ray.get_actor(writer)
        self.number = number
        self.news = News("", 0, {})
        self.published = Published(0, exported(adapter))
        threading.Thread(target=self._follow, name="resitta-follower", daemon=True).start()

    def predict(self, images: Any) -> tuple[Any, int]:
        """Return the logits of images, both arrays, and the version they come from."""
        published = self.published
        assert published.network is not None  # the engine refuses methods that cannot be exported
        with torch.inference_mode():
            return published.network(torch.tensor(images, device=self.device)).cpu().numpy(), published.version

    def version(self) -> int:
        """The version that predicts."""
        return self.published.version

    def _follow(self) -> None:
        while True:
            time.sleep(FOLLOW_EVERY)
            try:
                news = self.ray.get(self.writer.news.remote(self.number, self.news.writer, self.news.version))
            except self.ray.exceptions.RayError:  # the writer is gone; Ray brings it back
                continue
            if news is not None:
                network = self.source.around(changed(self.source.model, news.tensors))
                self.news, self.published = news, Published(news.version, network)
