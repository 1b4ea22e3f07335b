"""The processes of a service on Ray: one writer that learns and saves, readers that follow it and predict.

A reader polls the writer for new weights. While there is no writer, readers keep the weights they have; Ray restarts a
lost writer, which continues from its last snapshot, and the readers follow it there.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.bench.executors import enter
from resitta.errors import BadSetting, require
from resitta.runtime.weight_handoff import PublishedNetwork, changes
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Report, Task
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import Writer

POLL_SECONDS = 0.1
"""Seconds between two requests of a reader for new weights."""

MakeAdapter = Callable[[], Adapter]
"""Builds the adapter, the same in every process."""


@dataclass(frozen=True)
class News:
    """A version of the weights: the tensors that differ from the source's, by index, and the writer it comes from."""

    writer: str
    version: int
    tensors: dict[int, Tensor]


def published_network(adapter: Adapter) -> PublishedNetwork:
    """The network that readers predict with."""
    front = PublishedNetwork.of(adapter)
    if front is None:
        reason = "predicts and learns in one step, so that readers cannot follow it"
        raise BadSetting(f"{adapter.method.name} {reason}; serve it without --engine ray")
    return front


class WriterActor:
    """A `Writer` in a process of its own. Ray may call several of its methods at once."""

    def __init__(self, make: MakeAdapter, folder: Path, state: Path, limits: Limits) -> None:
        enter(folder)
        adapter = make()
        _, self.source = published_network(adapter).weights.read()
        self.writer = Writer(adapter, StateFolder(state, keep=limits.keep), limits, Events())
        self.name = os.urandom(8).hex()
        self.readers: dict[int, int] = {}
        self.writer.start()

    def offer(self, images: Any, clients: Sequence[str], logits: Any = None) -> list[bool]:
        """Queue images of some clients, and logits if they are known, for learning; return which are taken."""
        return self.writer.offer(torch.tensor(images), None if logits is None else torch.tensor(logits), clients)

    def news(self, reader: int, writer: str, version: int) -> News | None:
        """Return the newest weights, or None if they are those that the reader has."""
        self.readers[reader] = version
        front = self.writer.front
        if front is None or (writer, version) == (self.name, front.weights.newest):
            return None
        newest, tensors = front.weights.read()
        return News(self.name, newest, changes(self.source, tensors))

    def report(self) -> Report:
        """Return the state of the writer."""
        return replace(self.writer.report(), writer=self.name, readers=dict(self.readers))

    def do(self, task: Task, *arguments: Any) -> tuple[Any, tuple[int, str] | None]:
        """Run a task of the `Writer`; return its result, or the status and sentence of a refusal."""
        try:
            return self.writer.ask(task, *arguments).result(), None
        except Refused as refused:  # it cannot be pickled
            return None, (refused.status, str(refused))

    def close(self) -> None:
        """Save and stop."""
        self.writer.close()


class ReaderActor:
    """Predicts with the newest weights it has received."""

    def __init__(self, make: MakeAdapter, folder: Path, writer: str, number: int) -> None:
        enter(folder)
        adapter = make()
        self.device = adapter.source.device
        self.front = published_network(adapter)
        _, self.source = self.front.weights.read()
        self.ray = require("ray", "dist")
        self.writer = self.ray.get_actor(writer)
        self.number = number
        self.news = News("", 0, {})
        self._poll()  # before the first prediction: a restarted reader must not predict with the source
        threading.Thread(target=self._follow, name="resitta-follower", daemon=True).start()

    def predict(self, images: Any) -> tuple[Any, int]:
        """Return the logits of images, both arrays, and the version they come from."""
        logits, version = self.front.predict(torch.tensor(images, device=self.device))
        return logits.cpu().numpy(), version

    def version(self) -> int:
        """The newest version that was received."""
        return self.front.weights.newest

    def _follow(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            self._poll()

    def _poll(self) -> None:
        try:
            news = self.ray.get(self.writer.news.remote(self.number, self.news.writer, self.news.version))
        except self.ray.exceptions.RayError:  # the writer is gone; Ray brings it back
            return
        if news is not None:
            self.news = news
            tensors = [news.tensors.get(place, tensor) for place, tensor in enumerate(self.source)]
            self.front.weights.put(tensors, news.version)
