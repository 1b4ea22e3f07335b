"""The service without HTTP: readers that predict, and a writer that learns from their samples."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from resitta.adapter import Adapter
from resitta.checkpoint.state_lock import Claim
from resitta.errors import BadSetting
from resitta.fleets.files import SUFFIX
from resitta.monitor.shadow import Answered, FeedbackCount
from resitta.serve.events import Events
from resitta.serve.http_errors import Refused
from resitta.serve.learning import Report, Task
from resitta.serve.reader import Answer, Predict, Reader
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.stream_priors import StreamPriors
from resitta.serve.stream_rows import StreamRow
from resitta.serve.writer import Writer

MOST_DIGITS = 16
"""Digits of an image's number."""


class LearnerService(Protocol):
    """Owns an adapter and learns: a `Writer` in this process, or one on Ray."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    def start(self) -> None:
        """Begin to learn."""

    def close(self) -> None:
        """Finish the step under way, save, and stop."""

    def ask(self, task: Task, *arguments: Any) -> "Future[Any]":
        """Run a task with exclusive access to the adapter, before the next batch."""

    def report(self) -> Report:
        """Return the state, without waiting."""


Connect = Callable[[Adapter, StateFolder, Limits, Events], tuple[LearnerService, Sequence[Predict]]]
"""Returns the learner and, for each reader, its function that predicts."""


def connect_threads(
    adapter: Adapter, folder: StateFolder, limits: Limits, events: Events
) -> tuple[LearnerService, Sequence[Predict]]:
    """Learn in one thread of this process and predict in another."""
    writer = Writer(adapter, folder, limits, events)
    return writer, [writer.predict]


class Service:
    """Serves one adapter: predicts the images that are submitted, and learns from them.

    >>> import tempfile, resitta
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> with Service(resitta.adapt(model, "resitta"), size=8, state=Path(tempfile.mkdtemp())) as service:
    ...     answer = service.submit(torch.rand(2, 3, 8, 8)).result()
    >>> answer.logits.shape, answer.version, answer.learned
    (torch.Size([2, 4]), 0, 2)
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        size: int,
        state: Path,
        limits: Limits | None = None,
        names: Sequence[str] = (),
        connect: Connect = connect_threads,
    ) -> None:
        adapter.corrects = False  # answers are made of the published weights, outside the adapter's calls
        self._prepare(adapter, size, limits, names)
        self.claim = Claim(state)
        try:
            self.folder = StateFolder(state, keep=self.limits.keep)
            refuse_streams(state)
            learner, predicts = connect(adapter, self.folder, self.limits, self.events)
        except BaseException:
            self.claim.release()
            raise
        self._use(learner, predicts, StreamPriors.of(adapter.method, most=self.limits.streams))

    def _prepare(self, adapter: Adapter, size: int, limits: Limits | None, names: Sequence[str]) -> None:
        self.adapter, self.size, self.limits, self.events = adapter, size, limits or Limits(), Events()
        classes = self._count_classes()
        if names and len(names) != classes:
            raise BadSetting(f"the model has {classes} classes, found {len(names)} names; give one for each")
        self.names = tuple(names) or tuple(str(label) for label in range(classes))

    def _use(self, learner: LearnerService, predicts: Sequence[Predict], priors: StreamPriors | None) -> None:
        """Make a reader for each function that predicts."""
        self.writer, self.priors = learner, priors
        self.readers = [Reader(predict, self.limits, priors, self._watch) for predict in predicts]

    def start(self) -> None:
        """Start learning and predicting."""
        self.writer.start()
        for reader in self.readers:
            reader.start()

    def close(self) -> None:
        """Answer waiting requests, save the state, and stop."""
        try:
            for reader in self.readers:
                reader.close()
            self.writer.close()
        finally:
            self.claim.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, images: Tensor, client: str = "", stream: str = "") -> "Future[Answer]":
        """Predict images, N×3×size×size in [0, 1], and learn from them later.

        `client` is the key of their sender. All clients have an equal share of what is learned from. `stream` is the
        client's name of the stream that they come from, in this order; a label prior corrects only named streams.
        """
        return min(self.readers, key=lambda reader: reader.waiting).submit(images, client, stream)

    def feedback(self, ids: Sequence[str], labels: Sequence[int]) -> FeedbackCount:
        """Take the labels of images by the ids of their answers; those of another epoch are unknown.

        >>> import tempfile, resitta
        >>> from resitta.conformance import tiny_network
        >>> adapter = resitta.adapt(tiny_network(), "resitta", shadow=1.0)
        >>> with Service(adapter, size=8, state=Path(tempfile.mkdtemp())) as service:
        ...     answer = service.submit(torch.rand(2, 3, 8, 8)).result()
        ...     service.feedback([*answer.ids, "0-1"], [3, 4, 0])
        FeedbackCount(used=2, not_compared=0, unknown=1, falling_back=False)
        """
        shadow = self.adapter.shadow
        if shadow is None:
            raise Refused(409, "nothing is compared with the source; start the service with --shadow, such as 0.05")
        with shadow.lock:  # the epoch must not change meanwhile
            count = shadow.feedback(self.adapter.source, [number_of(name, shadow.epoch) for name in ids], labels)
        shadow.report(self.adapter.emit)
        return count

    def streams(self) -> list[StreamRow] | None:
        """A row of numbers for each stream, if it serves a fleet."""
        return None

    def stream_of(self, client: str, stream: str) -> str:
        """The name among the streams of all clients of one that a client calls so; the empty one without a fleet."""
        return ""

    def task_arguments(self, stream: str | None) -> tuple[str, ...]:
        """The arguments of a task that concerns all streams, or one."""
        if stream is not None:
            raise Refused(409, "this service learns from all requests as one stream; leave out stream=")
        return ()

    def _watch(self, images: Tensor, logits: Tensor) -> tuple[Tensor, Answered | None]:
        """Compare with the source, if there is a shadow."""
        shadow = self.adapter.shadow
        if shadow is None:
            return logits, None
        answer = shadow.watch(self.adapter.source, images, logits)
        shadow.report(self.adapter.emit)
        return answer, shadow.answered

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return self.writer.alive and all(reader.alive for reader in self.readers)

    @property
    def waiting(self) -> int:
        """Images that wait for their prediction."""
        return sum(reader.waiting for reader in self.readers)

    @property
    def predicted(self) -> int:
        """Images that were predicted since the start."""
        return sum(reader.predicted for reader in self.readers)

    def summary(self) -> str:
        """Where it continues."""
        report = self.writer.report()
        return f"version {report.version}, {report.stats.samples} samples"

    def stats(self) -> dict[str, Any]:
        """The state of the service as JSON. Never waits for the writer."""
        report = self.writer.report()
        stats: dict[str, Any] = {
            "method": self.adapter.method.name,
            "version": report.version,
            "learning": not report.paused,
            "predictions_wait_for_updates": not report.concurrent,
            "predicted": self.predicted,
            **vars(report.counters),
            "waiting_for_prediction": self.waiting,
            "adapter": asdict(report.stats),
            "snapshots": self.folder.versions(),
            "failed_saves": report.failed_saves,
            "guard_fired": report.guard_fired,
            "clients": report.clients,
            "events": [vars(event) for event in report.events],
            "names": self.names,
            "size": self.size,
        }
        stats["shadow"] = stats["adapter"].pop("shadow")
        if self.priors is not None:
            stats["adapter"]["label_prior"] = self.priors.summary()
        if report.readers is not None:
            stats["readers"] = [report.readers.get(number, 0) for number in range(len(self.readers))]
        return stats

    def _count_classes(self) -> int:
        """Predict one grey image, which also refuses models that do not take such images."""
        with self.adapter.paused() as adapter:
            grey = torch.full((1, 3, self.size, self.size), 0.5, device=adapter.source.device)
            logits: Tensor = adapter(grey)
        return logits.shape[1]


def refuse_streams(state: Path) -> None:
    """Refuse to keep a single state where a fleet keeps its streams: it would begin anew without notice."""
    if any(state.glob(f"stream-*{SUFFIX}")):
        raise BadSetting(f"{state} holds the streams of a fleet; serve it with --fleet, or choose another folder")


def number_of(name: str, epoch: str) -> int:
    """The number of an image in its epoch; -1, which no image has, if the id is of another epoch or none at all.

    >>> number_of("1f-8", "1f"), number_of("2e-8", "1f"), number_of("1f-x", "1f")
    (8, -1, -1)
    """
    found, _, number = name.partition("-")
    return int(number) if found == epoch and number.isdecimal() and len(number) < MOST_DIGITS else -1
