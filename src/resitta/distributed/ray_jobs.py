"""The runs of a bench on a Ray cluster. A lost worker's run is started again elsewhere; finished ones are not."""

from collections.abc import Sequence
from typing import Any

from resitta.bench.executors import Results, packed, work
from resitta.bench.runner import BenchSpec, Job
from resitta.distributed.cluster import cluster
from resitta.errors import ResittaError, WorkerLost

RETRIES = 5


def on_ray(
    spec: BenchSpec,
    jobs: Sequence[Job],
    workers: int | None = None,
    address: str | None = None,
    *,
    threads: int = 1,
    rerun: bool = False,
) -> Results:
    """Run jobs on a cluster, a core per thread (and, on CUDA, a GPU) for each."""
    with cluster(address, workers and workers * threads) as ray:
        gpus = 0 if spec.device == "cpu" else 1
        remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=RETRIES)(work)
        dumps = ray.cloudpickle.dumps  # takes along what an interactive session has defined
        parcel = ray.put(packed(spec, dumps))
        pending = {remote.remote(parcel, packed(job, dumps), threads, rerun): job for job in jobs}
        while pending:
            (finished,), _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(finished), _get(ray, finished)


def _get(ray: Any, reference: Any) -> Any:
    """Fetch a result; a `ResittaError` of the worker is raised as itself, a loss after all retries as `WorkerLost`."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ResittaError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).partition("\n")[0]
        advice = "look at the cluster's memory; run the same command again to continue"
        raise WorkerLost(f"a run was lost {RETRIES + 1} times ({reason}); {advice}") from error
