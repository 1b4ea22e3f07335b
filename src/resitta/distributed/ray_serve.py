"""A service on Ray: its writer and its readers are processes of their own, on any machine of a cluster.

    make = functools.partial(resitta.adapt, model, "resitta")
    with ray_service(make, size=32, state=Path("state"), readers=2) as service:
        answer = service.submit(images).result()

Every answer names the version of the weights it comes from. A killed writer is restarted and continues from its last
snapshot, at that snapshot's version; meanwhile readers answer. A killed reader's requests go to another one.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from resitta.adapter import Adapter
from resitta.distributed.cluster import cluster
from resitta.distributed.ray_actors import MakeAdapter, ReaderActor, WriterActor, published_network
from resitta.distributed.remote import RayReaders, RayWriter
from resitta.errors import BadSetting, WorkerLost
from resitta.serve.events import Events
from resitta.serve.reader import Predict
from resitta.serve.service import LearnerService, Service
from resitta.serve.settings import Limits
from resitta.serve.storage import StateFolder

START_SECONDS = 180.0
CALLS_AT_ONCE = 8


def ray_service(
    make: MakeAdapter, *, readers: int = 1, address: str | None = None, gpus: float = 0.0, **options: Any
) -> Service:
    """Make a service of one writer and `readers` that follow it.

    `make` builds the adapter in every process. `gpus`: the share of a GPU that each process gets. `options` are those
    of `Service`; its `state` must be reachable from every machine the writer may run on.
    """
    if readers < 1:
        raise BadSetting(f"readers must be at least 1, found {readers}")

    def connect(
        adapter: Adapter, folder: StateFolder, limits: Limits, events: Events
    ) -> tuple[LearnerService, Sequence[Predict]]:
        published_network(adapter)  # refuses methods that readers cannot follow
        if adapter.shadow is not None:
            raise BadSetting(
                "shadow needs readers in the process that learns; serve on one engine, or leave out shadow"
            )
        stack = ExitStack()
        try:
            ray = stack.enter_context(cluster(address, readers + 1))
            actors = _start_actors(ray, make, folder.path.absolute(), limits, readers=readers, gpus=gpus)
            for actor in actors:
                stack.callback(ray.kill, actor)
            writer = RayWriter(ray, actors[0], events, stop=stack.close)
        except BaseException:
            stack.close()
            raise
        remote = RayReaders(ray, actors[1:], writer.offer, feedback=adapter.method.feedback)
        return writer, [partial(remote.predict, number) for number in range(readers)]

    return Service(make(), connect=connect, **options)


def _start_actors(ray: Any, make: MakeAdapter, state: Path, limits: Limits, *, readers: int, gpus: float) -> list[Any]:
    """Start the writer and the readers, and wait until all answer."""
    here, needs = Path.cwd(), {"num_cpus": 1, "num_gpus": gpus}
    name = f"resitta-writer-{os.urandom(8).hex()}"
    writer = ray.remote(max_restarts=-1, max_concurrency=CALLS_AT_ONCE, **needs)(WriterActor)
    reader = ray.remote(max_restarts=-1, **needs)(ReaderActor)
    first = writer.options(name=name).remote(make, here, state, limits)
    actors = [first, *(reader.remote(make, here, name, number) for number in range(readers))]
    try:
        ray.get([first.report.remote(), *(actor.version.remote() for actor in actors[1:])], timeout=START_SECONDS)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().rpartition("\n")[2]
        wanted = f"a core for each of 1 writer and {readers} readers"
        raise WorkerLost(f"the service did not start on Ray ({reason}); the cluster needs {wanted}") from error
    return actors
