"""A service of many streams: each adapts by itself, and is named by the requests."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NoReturn

from torch import Tensor

from resitta.errors import BadSetting
from resitta.fleets import Fleet
from resitta.serve.fleet_writer import FleetWriter
from resitta.serve.http_errors import Refused
from resitta.serve.reader import Answer
from resitta.serve.service import Service
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder
from resitta.serve.stream_names import StreamNames
from resitta.serve.stream_rows import StreamRow


class FleetService(Service):
    """Serves a fleet with a folder: predicts the images that are submitted, and lets their streams learn from them.

    >>> import tempfile, torch, resitta
    >>> from resitta.conformance import tiny_network
    >>> fleet = resitta.fleet(tiny_network(), "resitta", folder=tempfile.mkdtemp())
    >>> with FleetService(fleet, size=8) as service:
    ...     answer = service.submit(torch.rand(2, 3, 8, 8), "token:5f3a", "gate").result()
    >>> answer.logits.shape, answer.learned
    (torch.Size([2, 5]), 2)
    """

    def __init__(self, fleet: Fleet, *, size: int, limits: Limits | None = None, names: Sequence[str] = ()) -> None:
        if fleet.files is None:
            raise BadSetting("a service keeps its streams in a folder; pass folder= to resitta.fleet")
        self.fleet, self.claim = fleet, fleet.files.claim
        try:
            self._prepare(fleet.template, size, limits, names)
            self.folder = StateFolder(fleet.files.folder, keep=self.limits.keep)
            if self.folder.versions():
                advice = "serve it without --fleet, or choose another folder"
                raise BadSetting(f"{self.folder.path} holds the snapshots of a service of one stream; {advice}")
            self.learner = FleetWriter(fleet, self.limits, self.events, size=size)
            self.stream_names = StreamNames.of_folder(fleet.files.folder)
        except BaseException:
            self.claim.release()
            raise
        self._use(self.learner, [self.learner.predict], priors=None)

    def submit(self, images: Tensor, client: str = "", stream: str = "") -> "Future[Answer]":
        """Predict images as those of a client's stream, and learn from them later."""
        return super().submit(images, self.stream_of(client, stream))

    def summary(self) -> str:
        """Where it continues."""
        return f"{len(self.fleet)} streams"

    def stream_of(self, client: str, stream: str) -> str:
        """The name among the streams of all clients of one that a client calls so."""
        return self.stream_names.of(client, stream)

    def streams(self) -> list[StreamRow]:
        """A row of numbers for each stream."""
        return self.learner.rows.listing()

    def task_arguments(self, stream: str | None) -> tuple[str, ...]:
        """The arguments of a task that concerns all streams, or one that is known."""
        if stream is None:
            return ()
        if stream not in self.fleet:
            raise Refused(404, f"there is no stream called {stream[:100]!r}; GET /streams lists them")
        return (stream,)

    def feedback(self, ids: Sequence[str], labels: Sequence[int]) -> NoReturn:
        """Refuse labels: streams are not compared with the source."""
        raise Refused(409, "the streams of a fleet are not compared with the source; serve without --fleet for that")
