"""Where the runs of a bench take place: in this process, in several on this machine, or on a Ray cluster.

All engines leave the same records: a run depends on its method, seed, model and data, not on where it took place.
Only what has no record yet is run, so a bench that was interrupted goes on under any engine.
"""

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Literal

import torch

from resitta.bench.bench import Bench, Job
from resitta.bench.recipe import Recipe
from resitta.bench.record import RunRecord, read_json, write_json
from resitta.bench.run import Progress
from resitta.dist.cluster import enter
from resitta.errors import WorkerLost
from resitta.settings import check_settings, setting

Results = Iterator[tuple[Job, Any]]
"""Jobs in the order in which they finish, each with the content of its record."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where runs take place.

    `workers`: how many at a time; None means one per core. `address`: a running Ray cluster; None starts one here.

    >>> Engine(name="processes", workers=0)
    Traceback (most recent call last):
        ...
    resitta.errors.BadSetting: workers must be >= 1, found 0; its default is None
    """

    name: Literal["local", "processes", "ray"] = "local"
    workers: int | None = setting(None, at_least=1)
    address: str | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def results(self, recipe: Recipe, jobs: Sequence[Job]) -> Results:
        """Run jobs in other processes."""
        if self.name == "processes":
            return on_processes(recipe, jobs, self.workers)
        from resitta.dist.ray_jobs import on_ray  # noqa: PLC0415  (needs the extra `dist`)

        return on_ray(recipe, jobs, self.workers, self.address)


def run_jobs(
    recipe: Recipe, jobs: Sequence[Job], bar: Callable[[str], Progress], engine: Engine | None = None
) -> list[RunRecord]:
    """Return the records of all jobs, in order; `bar` makes a progress bar of a title."""
    bench = recipe.open(bar("opening the data"))
    missing = [job for job in jobs if not bench.path(job).exists()]
    if engine is None or engine.name == "local" or not missing:
        return bench.records(jobs, bar)
    progress = bar(f"{len(missing)} runs")
    progress(0, len(missing))
    for done, (job, content) in enumerate(engine.results(recipe, missing), start=1):
        path = bench.path(job)
        if not path.exists():  # the worker's disk is not ours
            write_json(path, content)
        progress(done, len(missing))
    return bench.records(jobs)


def measure(recipe: Recipe, job: Job) -> Any:
    """Run a job, unless it is finished, and return the content of its record. This is what a worker does."""
    bench = _opened(recipe)
    bench.record(job)
    return read_json(bench.path(job))


def end_at_ctrl_c() -> None:
    """Let Ctrl-C end a worker at once: a pool would begin the next run first, and a record is whole or not there."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_processes(recipe: Recipe, jobs: Sequence[Job], workers: int | None = None) -> Results:
    """Run jobs in a pool of processes on this machine."""
    spawn = multiprocessing.get_context("spawn")  # a forked child could not use CUDA
    count = min(len(jobs), workers or os.cpu_count() or 1)
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=end_at_ctrl_c) as pool:
        futures = {pool.submit(measure, recipe, job): job for job in jobs}
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


@functools.lru_cache(maxsize=1)
def _opened(recipe: Recipe) -> Bench:
    """Open the bench once per worker."""
    enter(recipe.folder)
    if recipe.device == "cpu":
        torch.set_num_threads(1)  # there is a worker for every core
    return recipe.open()
