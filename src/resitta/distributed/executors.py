"""Where the runs of a bench take place: in this process, in several on this machine, or on a Ray cluster.

All executors leave the same records: a run depends on its method, seed, model and data, not on where it took place.
Only what has no record yet is run, so an interrupted bench can be continued under any executor.
"""

import functools
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal

import torch

from resitta.bench.jobs import Results
from resitta.bench.record import read_json
from resitta.bench.runner import Bench, Job
from resitta.bench.spec import Recipe
from resitta.distributed.cluster import enter
from resitta.errors import BadSetting, WorkerLost
from resitta.settings import check_settings, setting


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Where runs take place.

    `workers`: how many at a time; None means one per core. `address`: a running Ray cluster; None starts one here.
    `threads`: of each run on the CPU; None means one.

    >>> Executor(name="processes", workers=0)
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: workers must be >= 1, found 0; its default is None
    """

    name: Literal["local", "processes", "ray"] = "local"
    workers: int | None = setting(None, at_least=1)
    address: str | None = None
    threads: int | None = setting(None, at_least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def results(self, recipe: Recipe, jobs: Sequence[Job], *, rerun: bool = False) -> Results:
        """Run jobs in other processes."""
        if self.name == "processes":
            return on_processes(recipe, jobs, self.workers, threads=self.threads or 1, rerun=rerun)
        from resitta.distributed.ray_jobs import on_ray  # noqa: PLC0415  (needs the extra `dist`)

        return on_ray(recipe, jobs, self.workers, self.address, threads=self.threads or 1, rerun=rerun)


def measure(recipe: Recipe | bytes, job: Job, *, threads: int = 1, rerun: bool = False) -> Any:
    """Run a job, unless it is finished, and return the content of its record. This is what a worker does.

    A recipe that was pickled is opened once per worker, whatever it holds.
    """
    bench = _opened(recipe, threads)
    bench.record(job, rerun=rerun)
    return read_json(bench.path(job))


def work(recipe: bytes, job: bytes, threads: int, rerun: bool) -> Any:
    """Measure a job that was pickled."""
    return measure(recipe, pickle.loads(job), threads=threads, rerun=rerun)


def end_at_ctrl_c() -> None:
    """Let Ctrl-C end a worker at once: a pool would start the next run first. Records are written atomically."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_processes(
    recipe: Recipe, jobs: Sequence[Job], workers: int | None = None, *, threads: int = 1, rerun: bool = False
) -> Results:
    """Run jobs in a pool of processes on this machine."""
    spawn = multiprocessing.get_context("spawn")  # a forked child could not use CUDA
    count = min(len(jobs), workers or max(1, (os.cpu_count() or 1) // threads))
    parcel, errands = packed(recipe), {job: packed(job) for job in jobs}
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=end_at_ctrl_c) as pool:
        futures = {pool.submit(work, parcel, errand, threads, rerun): job for job, errand in errands.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            advice = (
                "perhaps for want of memory; use fewer workers and run the same command again: what is done is kept"
            )
            raise WorkerLost(f"a worker process died, {advice}") from error
        finally:
            pool.shutdown(cancel_futures=True)


def packed(thing: Recipe | Job, dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Pickle what a worker needs, or say what cannot leave this process."""
    what = f"{thing.method.name} with its settings" if isinstance(thing, Job) else "the model and the images"
    advice = "define it at the top level of a file, or use engine='local'"
    try:
        parcel = dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadSetting(f"{what} cannot be sent to another process ({error}); {advice}") from error
    if dumps is pickle.dumps and b"__main__" in parcel and not hasattr(sys.modules["__main__"], "__file__"):
        reason = "it belongs to an interactive session, which no other process can import"
        raise BadSetting(f"{what} cannot be sent to another process ({reason}); {advice}")
    return parcel


@functools.lru_cache(maxsize=1)
def _opened(recipe: Recipe | bytes, threads: int) -> Bench:
    """Open the bench once per worker."""
    known: Recipe = pickle.loads(recipe) if isinstance(recipe, bytes) else recipe
    enter(known.folder)
    if known.device == "cpu":
        torch.set_num_threads(threads)  # by default there is a worker for every core
    return known.open()
