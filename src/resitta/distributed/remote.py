"""A writer and readers that are actors on Ray, with the faces that an engine's own writer and reader have."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from resitta.distributed.ray_actors import Report
from resitta.monitor.stats import Stats
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learn_queue import Counters
from resitta.serve.published import Published
from resitta.serve.reader import Answer, Reader
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.writer import RolledBack
from resitta.training.network import Network

T = TypeVar("T")
Predicted = Callable[[Tensor, Sequence[str]], list[bool]]
"""Is told which images of which clients were predicted; returns which will be learned from."""

REPORT_EVERY = 0.25
PATIENCE = 5.0
IN_FLIGHT = 32
"""Batches that may be on their way to the writer; further ones are predicted, and counted as dropped."""


class RemoteInbox:
    """Sends images to the writer without waiting for it."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.lost = 0
        self.report: Report = ray.get(actor.report.remote())
        self._sent: deque[tuple[Any, int]] = deque()
        self._lock = threading.Lock()
        self._tasks = ThreadPoolExecutor(4, thread_name_prefix="resitta-task")

    @property
    def paused(self) -> bool:
        """Whether learning is paused."""
        return self.report.paused

    @property
    def counters(self) -> Counters:
        """The counters of the present writer; images that could not be sent are dropped ones."""
        now = self.report.counters
        return replace(now, offered=now.offered + self.lost, dropped=now.dropped + self.lost)

    def offer(self, images: Tensor, clients: Sequence[str]) -> list[bool]:
        """Send images, unless too many are on their way already, and return which will be learned from."""
        with self._lock:
            self._settle()
            if len(self._sent) >= IN_FLIGHT:
                self.lost += len(images)
                return [False] * len(images)
            self._sent.append((self.actor.offer.remote(images.numpy(), list(clients)), len(images)))
        return [not self.paused and name not in self.report.muted for name in clients]

    def ask(self, action: Callable[[], T]) -> "Future[T]":
        """Have something done that waits for the writer."""
        return self._tasks.submit(action)

    def _settle(self) -> None:
        """Forget what has arrived, and count what was lost with a writer."""
        while self._sent and self.ray.wait([self._sent[0][0]], timeout=0)[0]:
            reference, count = self._sent.popleft()
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayError:
                self.lost += count


class RemoteWriter:
    """The writer's actor; a thread keeps its last report, so that nobody waits for it."""

    def __init__(self, ray: Any, actor: Any, folder: StateFolder, network: Network, events: Events) -> None:
        self.ray, self.actor = ray, actor
        self.folder = folder
        self.network = network
        self.events = events
        self.inbox = RemoteInbox(ray, actor)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resitta-watch", daemon=True)

    @property
    def published(self) -> Published:
        """The version that readers are to predict with; the network only says that there is one."""
        return Published(self.inbox.report.version, self.network)

    @property
    def stats(self) -> Stats:
        """The adapter's statistics."""
        return self.inbox.report.stats

    @property
    def failed_saves(self) -> int:
        """How many snapshots the present writer could not write."""
        return self.inbox.report.failed_saves

    @property
    def guard_fired(self) -> dict[str, int]:
        """How often each reason was found by the guard of the present writer."""
        return self.inbox.report.guard_fired

    @property
    def clients(self) -> list[dict[str, Any]]:
        """The clients that sent most images to the present writer."""
        return self.inbox.report.clients

    @property
    def muted(self) -> frozenset[str]:
        """The clients that the present writer does not learn from."""
        return self.inbox.report.muted

    @property
    def alive(self) -> bool:
        """Whether the service runs; a lost writer is being restarted and stops no prediction."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to watch the writer."""
        self._thread.start()

    def close(self) -> None:
        """Let the writer save, and stop."""
        self._closing.set()
        self._thread.join()
        self.ray.get(self.actor.close.remote())

    def pause(self) -> None:
        """Stop learning at once; predictions go on."""
        self._do("pause")

    def resume(self) -> None:
        """Learn again."""
        self._do("resume")

    def reset(self) -> int:
        """Go back to the source model and return the new version."""
        return int(self._do("reset"))

    def snapshot(self) -> int:
        """Save now and return the version saved."""
        return int(self._do("snapshot"))

    def rollback(self, version: int | None = None) -> RolledBack:
        """Go back to a snapshot, as `Writer.rollback` does."""
        done: RolledBack = self._do("rollback", version)
        return done

    def bank(self, most: int) -> Any:
        """Copy the memory of samples, as `Writer.bank` does."""
        return self._do("bank", most)

    def _do(self, task: str, *arguments: Any) -> Any:
        try:
            result, refusal = self.ray.get(self.actor.do.remote(task, *arguments))
            self._hear(self.ray.get(self.actor.report.remote()))
        except self.ray.exceptions.RayActorError as error:
            raise Refused(503, "the writer is being restarted; try again later") from error
        if refusal is not None:
            raise Refused(*refusal)
        return result

    def _watch(self) -> None:
        while not self._closing.wait(REPORT_EVERY):
            with suppress(self.ray.exceptions.RayError):  # it is being restarted
                self._hear(self.ray.get(self.actor.report.remote(), timeout=PATIENCE))

    def _hear(self, report: Report) -> None:
        if report.writer != self.inbox.report.writer:
            self.events.add("failure", f"the writer was lost; it is back and goes on from version {report.version}")
        self.inbox.report = report


class RemoteReaders:
    """The readers' actors. Each has a queue of its own; a request goes to the shortest, and past a reader that died."""

    def __init__(self, ray: Any, actors: Sequence[Any], limits: Limits, predicted: Predicted) -> None:
        self.ray, self.actors = ray, actors
        self.predicted = predicted
        self.queues = [Reader(partial(self._predict, index), limits) for index in range(len(actors))]
        self._returning: dict[int, Any] = {}
        """For each reader that died, a call that is answered when it is back."""

    @property
    def waiting(self) -> int:
        """Images that wait for their prediction."""
        return sum(queue.waiting for queue in self.queues)

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return all(queue.alive for queue in self.queues)

    def start(self) -> None:
        """Begin to predict."""
        for queue in self.queues:
            queue.start()

    def close(self) -> None:
        """Answer what is waiting, and stop."""
        for queue in self.queues:
            queue.close()

    def submit(self, images: Tensor, client: str = "") -> "Future[Answer]":
        """Queue a request where the fewest wait."""
        there = [queue for index, queue in enumerate(self.queues) if self._is_there(index)]
        return min(there or self.queues, key=lambda queue: queue.waiting).submit(images, client)

    def _predict(self, first: int, images: Tensor, clients: Sequence[str]) -> tuple[Tensor, int, list[bool]]:
        """Predict with a reader, or with the next one if it has died."""
        count = len(self.actors)
        for index in (*range(first, count), *range(first)):
            if (answer := self._result(self.actors[index].predict.remote(images.numpy()))) is not None:
                logits, version = answer
                return torch.tensor(logits), version, self.predicted(images, clients)
            self._returning[index] = self.actors[index].version.remote()
        raise Refused(503, "all readers are being restarted; try again later")

    def _is_there(self, index: int) -> bool:
        call = self._returning.get(index)
        if call is not None and self.ray.wait([call], timeout=0)[0]:
            del self._returning[index]
        return index not in self._returning

    def _result(self, reference: Any) -> Any:
        """What a call returns, or None if its actor has died."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayActorError:
            return None
