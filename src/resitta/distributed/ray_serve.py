"""A service on Ray: the same engine, with its writer and its readers in processes of their own, on any machine.

    make = functools.partial(resitta.adapt, model, "resitta")
    with RayEngine(make, size=32, state=Path("state"), readers=2) as engine:
        answer = engine.submit(images).result()

Every answer names the version of the state it comes from. A killed writer is restarted and continues from its last
snapshot, at that snapshot's version; meanwhile readers answer. A killed reader's requests go to another one.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from resitta.distributed.cluster import cluster
from resitta.distributed.ray_actors import MakeAdapter, ReaderActor, WriterActor
from resitta.distributed.remote import RemoteReaders, RemoteWriter
from resitta.errors import BadSetting, WorkerLost
from resitta.serve.engine import Engine
from resitta.serve.events import Events
from resitta.serve.reader import Reader
from resitta.serve.settings import Limits
from resitta.serve.writer import Writer

START_SECONDS = 180.0
CALLS_AT_ONCE = 8


class RayEngine(Engine):
    """An engine of one adapting writer and `readers` that follow it.

    `make` builds the adapter in every process. `state` must be reachable from every machine the writer may run on.
    `gpus`: the share of a GPU that each process gets.
    """

    def __init__(
        self,
        make: MakeAdapter,
        *,
        size: int,
        state: Path,
        readers: int = 1,
        limits: Limits | None = None,
        names: Sequence[str] = (),
        address: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        super().__init__(make(), size=size, state=state, limits=limits, names=names)
        if readers < 1:
            raise BadSetting(f"readers must be at least 1, found {readers}")
        local = self.writer
        if local.published.network is None:
            reason = "predicts and learns in one step, so that readers cannot follow it"
            raise BadSetting(f"{self.adapter.method.name} {reason}; serve it without --engine ray")
        self.events = Events()  # the writer's actor tells again what it has found in the folder
        self._lock = threading.Lock()
        self._cluster = ExitStack()
        self._ray = ray = self._cluster.enter_context(cluster(address, readers + 1))
        self.actors = self._start_actors(make, state.absolute(), readers, {"num_cpus": 1, "num_gpus": gpus})
        writer = RemoteWriter(ray, self.actors[0], local.folder, local.published.network, self.events)
        # The rest of the service needs no more of the two than these have.
        self.writer = cast(Writer, writer)
        self.reader = cast(Reader, RemoteReaders(ray, self.actors[1:], self.limits, self._learn_from))

    def close(self) -> None:
        """Answer what waits, save the state, stop all processes."""
        try:
            super().close()
        finally:
            for actor in self.actors:
                self._ray.kill(actor)
            self._cluster.close()

    def stats(self) -> dict[str, Any]:
        """The state of the service as JSON, with the version of each reader."""
        report = cast(RemoteWriter, self.writer).inbox.report
        events = sorted([*self.events.newest(), *report.events], key=lambda event: -event.time)
        readers = [report.readers.get(number, 0) for number in range(len(self.actors) - 1)]
        return {**super().stats(), "readers": readers, "events": [vars(event) for event in events]}

    def _start_actors(self, make: MakeAdapter, state: Path, readers: int, needs: dict[str, float]) -> list[Any]:
        """Start the writer and the readers, and wait until all answer."""
        ray, here = self._ray, Path.cwd()
        name = f"resitta-writer-{os.urandom(8).hex()}"
        writer = ray.remote(max_restarts=-1, max_concurrency=CALLS_AT_ONCE, **needs)(WriterActor)
        reader = ray.remote(max_restarts=-1, **needs)(ReaderActor)
        first = writer.options(name=name).remote(make, here, state, self.limits)
        actors = [first, *(reader.remote(make, here, name, number) for number in range(readers))]
        try:
            ray.get([first.report.remote(), *(actor.version.remote() for actor in actors[1:])], timeout=START_SECONDS)
        except ray.exceptions.RayError as error:
            self._cluster.close()
            reason = str(error).strip().rpartition("\n")[2]
            wanted = f"a core for each of 1 writer and {readers} readers"
            raise WorkerLost(f"the service did not start on Ray ({reason}); the cluster needs {wanted}") from error
        return actors

    def _learn_from(self, images: Tensor, clients: Sequence[str]) -> list[bool]:
        """Pass predicted images on to the writer."""
        with self._lock:
            self.predicted += len(images)
        return self.writer.inbox.offer(images, clients=clients)
