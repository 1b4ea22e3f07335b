"""The driver's side of a service on Ray: proxies of the writer's and the readers' actors."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Report, Task
from resitta.serve.reader import Predicted
from resitta.serve.stream_priors import Correct, unchanged

REPORT_SECONDS = 0.25
REPORT_TIMEOUT = 5.0
Offer = Callable[[Tensor, Sequence[str], Tensor | None], list[bool]]
IN_FLIGHT = 32
"""Batches in flight to the writer; further ones are predicted, and counted as dropped."""


class RayWriter:
    """Proxy of the writer's actor. A thread polls its reports, so that only tasks wait for the actor."""

    def __init__(self, ray: Any, actor: Any, events: Events, stop: Callable[[], None]) -> None:
        self.ray, self.actor = ray, actor
        self.events = events
        self._stop = stop
        self._last: Report = ray.get(actor.report.remote())
        self._lost = 0
        self._sent: deque[tuple[Any, int]] = deque()
        self._lock = threading.Lock()
        self._tasks = ThreadPoolExecutor(4, thread_name_prefix="resitta-task")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="resitta-reports", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the service runs; a lost writer is being restarted and stops no prediction."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to follow the writer."""
        self._thread.start()

    def close(self) -> None:
        """Let the writer save, and stop all processes."""
        self._closing.set()
        self._thread.join()
        try:
            self.ray.get(self.actor.close.remote())
        finally:
            self._stop()

    def offer(self, images: Tensor, clients: Sequence[str], logits: Tensor | None = None) -> list[bool]:
        """Send images, and logits to learn from, to the writer, unless too many are in flight.

        Return which will be learned from.
        """
        known = None if logits is None else logits.numpy()
        with self._lock:
            self._settle()
            if len(self._sent) >= IN_FLIGHT:
                self._lost += len(images)
                return [False] * len(images)
            self._sent.append((self.actor.offer.remote(images.numpy(), list(clients), known), len(images)))
        report = self._last
        return [not report.paused and name not in report.muted for name in clients]

    def ask(self, task: Task, *arguments: Any) -> "Future[Any]":
        """Have the writer run a task."""
        return self._tasks.submit(self._ask, task, *arguments)

    def report(self) -> Report:
        """The last report of the writer; images that could not be sent count as dropped."""
        report, lost = self._last, self._lost
        sent = report.counters
        counters = replace(sent, offered=sent.offered + lost, dropped=sent.dropped + lost)
        events = sorted([*self.events.newest(), *report.events], key=lambda event: -event.time)
        return replace(report, counters=counters, events=events)

    def _settle(self) -> None:
        """Remove batches that have arrived; count those lost with a writer."""
        while self._sent and self.ray.wait([self._sent[0][0]], timeout=0)[0]:
            reference, count = self._sent.popleft()
            try:
                self.ray.get(reference)
            except self.ray.exceptions.RayError:
                self._lost += count

    def _ask(self, task: Task, *arguments: Any) -> Any:
        try:
            result, refusal = self.ray.get(self.actor.do.remote(task, *arguments))
            self._keep(self.ray.get(self.actor.report.remote()))
        except self.ray.exceptions.RayActorError as error:
            raise Refused(503, "the writer is being restarted; try again later") from error
        if refusal is not None:
            raise Refused(*refusal)
        return result

    def _follow(self) -> None:
        while not self._closing.wait(REPORT_SECONDS):
            with suppress(self.ray.exceptions.RayError):  # it is being restarted
                self._keep(self.ray.get(self.actor.report.remote(), timeout=REPORT_TIMEOUT))

    def _keep(self, report: Report) -> None:
        if report.writer != self._last.writer:
            text = f"the writer was lost; it is back and continues from version {report.version}"
            self.events.add("failure", text)
        self._last = report


class RayReaders:
    """Proxy of the readers' actors; another one steps in for one that has died."""

    def __init__(self, ray: Any, actors: Sequence[Any], offer: Offer, *, feedback: bool = False) -> None:
        self.ray, self.actors = ray, actors
        self.offer = offer
        self.feedback = feedback
        """Whether to learn from the corrected predictions; else the writer makes predictions of its own."""
        self._returning: dict[int, Any] = {}
        """For each reader that died, a call that is answered when it is back."""

    def predict(self, first: int, images: Tensor, clients: Sequence[str], correct: Correct = unchanged) -> Predicted:
        """Predict with a reader, or with the next one if it has died, and offer the images to the writer."""
        order = [*range(first, len(self.actors)), *range(first)]
        for index in [index for index in order if self._is_there(index)] or order:
            try:
                logits, version = self.ray.get(self.actors[index].predict.remote(images.numpy()))
            except self.ray.exceptions.RayActorError:
                self._returning[index] = self.actors[index].version.remote()
                continue
            answer = correct(torch.tensor(logits))
            return answer, version, self.offer(images, clients, answer if self.feedback else None)
        raise Refused(503, "all readers are being restarted; try again later")

    def _is_there(self, index: int) -> bool:
        call = self._returning.get(index)
        if call is not None and self.ray.wait([call], timeout=0)[0]:
            self._returning.pop(index, None)
        return index not in self._returning
