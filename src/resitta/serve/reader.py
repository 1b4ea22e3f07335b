"""The reader: one thread that predicts what requests ask for, several requests at once where they coincide."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from resitta.serve.http_errors import Refused
from resitta.serve.settings import Limits

Predict = Callable[[Tensor, list[str]], tuple[Tensor, int, list[bool]]]
"""Images and their clients -> logits, the version of the weights they come from, and which will be learned from."""


@dataclass(frozen=True)
class Answer:
    """What a request gets: logits on the host, the version of the state, and how many of its images will be learned."""

    logits: Tensor
    version: int
    learned: int


@dataclass(frozen=True)
class _Request:
    images: Tensor
    client: str
    answer: "Future[Answer]"


class Reader:
    """Gathers requests for at most `wait_ms`, or until `batch` images are there, and predicts them together.

    >>> reader = Reader(lambda images, clients: (images.flatten(1), 7, [True] * len(images)), Limits())
    >>> reader.start()
    >>> reader.submit(torch.ones(2, 3, 1, 1)).result().version
    7
    >>> reader.close()
    """

    def __init__(self, predict: Predict, limits: Limits) -> None:
        self.predict = predict
        self.limits = limits
        self.waiting = self.predicted = 0
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._left_over: _Request | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="resitta-reader", daemon=True)

    def start(self) -> None:
        """Begin to predict."""
        self._thread.start()

    def close(self) -> None:
        """Answer what is waiting, and stop."""
        with self._lock:
            self._closed = True
        self._requests.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes requests."""
        return self._thread.is_alive() and not self._closed

    def submit(self, images: Tensor, client: str = "") -> "Future[Answer]":
        """Queue a request; refused when too many images wait already. Cancel the future to give up."""
        request = _Request(images, client, Future())
        with self._lock:
            if self._closed:
                raise Refused(503, "the service is stopping; try again later")
            if self.waiting + len(images) > max(self.limits.queue, len(images)):
                raise Refused(429, f"{self.waiting} images are waiting for their prediction already; try again later")
            self.waiting += len(images)
            self._requests.put(request)
        return request.answer

    def _run(self) -> None:
        while (first := self._next(None)) is not None:
            requests = [first, *self._companions(first)]
            with self._lock:
                self.waiting -= sum(len(request.images) for request in requests)
            wanted = [request for request in requests if request.answer.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)

    def _next(self, timeout: float | None) -> _Request | None:
        """The next request; None when there is none in time, or no more."""
        if (request := self._left_over) is not None:
            self._left_over = None
            return request
        try:
            request = self._requests.get(timeout=timeout)
        except queue.Empty:
            return None
        if request is None:
            self._requests.put(None)  # the end, for whoever looks next
        return request

    def _companions(self, first: _Request) -> list[_Request]:
        """Further requests that fit into the batch of the first and come before the wait is over."""
        deadline = time.monotonic() + self.limits.wait_ms / 1000
        room = self.limits.batch - len(first.images)
        found: list[_Request] = []
        while room > 0 and (request := self._next(max(0.0, deadline - time.monotonic()))) is not None:
            if len(request.images) > room:
                self._left_over = request
                break
            found.append(request)
            room -= len(request.images)
        return found

    def _answer(self, requests: list[_Request]) -> None:
        try:
            clients = [request.client for request in requests for _ in request.images]
            logits, version, learned = self.predict(torch.cat([request.images for request in requests]), clients)
            self.predicted += len(logits)
            parts = torch.split(logits.cpu(), [len(request.images) for request in requests])
        except Exception as error:
            for request in requests:
                request.answer.set_exception(error)
            return
        for request, part in zip(requests, parts, strict=True):
            own, learned = learned[: len(part)], learned[len(part) :]
            request.answer.set_result(Answer(part, version, sum(own)))
