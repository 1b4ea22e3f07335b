"""The reader: one thread that predicts the images of requests, in batches of several requests."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from resitta.monitor.shadow import Answered
from resitta.serve.http_errors import Refused
from resitta.serve.settings import Limits
from resitta.serve.stream_priors import Correct, Stream, StreamPriors

Predicted = tuple[Tensor, int, list[bool]]
"""Logits, the version of the weights they come from, and which images will be learned from."""
Predict = Callable[[Tensor, list[str], Correct], Predicted]
"""Predicts images, each with its client; the logits are corrected before they are answered."""
Watch = Callable[[Tensor, Tensor], tuple[Tensor, Answered | None]]
"""From images and their logits to those that are answered, and the ids of the images if they are compared."""


@dataclass(frozen=True)
class Answer:
    """The answer to a request: logits on the host, the version, and how many of its images will be learned from.

    With a shadow: the id of each image, whether it is compared, and whether the source's predictions are the answer.
    """

    logits: Tensor
    version: int
    learned: int
    ids: tuple[str, ...] = ()
    compared: tuple[bool, ...] = ()
    fallback: bool = False


@dataclass(frozen=True)
class _Request:
    images: Tensor
    client: str
    stream: Stream | None
    answer: "Future[Answer]"


class Reader:
    """Predicts requests in batches: of `batch` images, or of those that arrive within `wait_ms`.

    >>> reader = Reader(lambda images, *_: (images.flatten(1), 7, [True] * len(images)), Limits())
    >>> reader.start()
    >>> reader.submit(torch.ones(2, 3, 1, 1)).result().version
    7
    >>> reader.close()
    """

    def __init__(
        self,
        predict: Predict,
        limits: Limits,
        priors: StreamPriors | None = None,
        watch: Watch = lambda _, logits: (logits, None),
    ) -> None:
        self.predict = predict
        self.limits = limits
        self.priors = priors
        self.watch = watch
        self.waiting = self.predicted = 0
        self._requests: deque[_Request] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="resitta-reader", daemon=True)

    def start(self) -> None:
        """Begin to predict."""
        self._thread.start()

    def close(self) -> None:
        """Answer waiting requests, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes requests."""
        return self._thread.is_alive() and not self._closed

    def submit(self, images: Tensor, client: str = "", stream: str = "") -> "Future[Answer]":
        """Queue a request, or refuse it if too many images wait. Cancel the future to withdraw it."""
        request = _Request(images, client, (client, stream) if stream else None, Future())
        with self._changed:
            if self._closed:
                raise Refused(503, "the service is stopping; try again later")
            if self.waiting + len(images) > max(self.limits.queue, len(images)):
                raise Refused(429, f"{self.waiting} images are waiting for their prediction already; try again later")
            self.waiting += len(images)
            self._requests.append(request)
            self._changed.notify_all()
        return request.answer

    def _run(self) -> None:
        while requests := self._gather():
            wanted = [request for request in requests if request.answer.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)

    def _gather(self) -> list[_Request]:
        """Wait for a batch of requests; return none once the reader is closed and all are answered."""
        found: list[_Request] = []
        room = self.limits.batch
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._closed)
            self._changed.wait_for(lambda: self.waiting >= room or self._closed, self.limits.wait_ms / 1000)
            while self._requests and (not found or len(self._requests[0].images) <= room):
                found.append(self._requests.popleft())
                self.waiting -= len(found[-1].images)
                room -= len(found[-1].images)
        return found

    def _answer(self, requests: list[_Request]) -> None:
        try:
            clients = [request.client for request in requests for _ in request.images]
            streams = [request.stream for request in requests for _ in request.images]
            correct = partial(self._correct, streams=streams)
            images = torch.cat([request.images for request in requests])
            logits, version, learned = self.predict(images, clients, correct)
            logits, answered = self.watch(images, logits)
            self.predicted += len(logits)
            parts = torch.split(logits.cpu(), [len(request.images) for request in requests])
        except Exception as error:
            for request in requests:
                request.answer.set_exception(error)
            return
        start = 0
        for request, part in zip(requests, parts, strict=True):
            own = slice(start, start := start + len(part))
            request.answer.set_result(Answer(part, version, sum(learned[own]), *shown(answered, own)))

    def _correct(self, logits: Tensor, streams: list[Stream | None]) -> Tensor:
        return logits if self.priors is None else self.priors.correct(logits, streams)


def shown(answered: Answered | None, own: slice) -> tuple[tuple[str, ...], tuple[bool, ...], bool]:
    """The ids of some images of a batch, which of them are compared, and whether the source answers.

    >>> shown(Answered(range(7, 10), (True, False, True), fallback=False, epoch="1f"), slice(1, 3))
    (('1f-8', '1f-9'), (False, True), False)
    """
    if answered is None:
        return (), (), False
    return (
        tuple(f"{answered.epoch}-{number}" for number in answered.ids[own]),
        answered.compared[own],
        answered.fallback,
    )
