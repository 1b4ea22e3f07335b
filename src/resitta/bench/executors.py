"""Where the runs of a bench execute: in this process, in several on this machine, or on a Ray cluster.

All executors leave the same records: a run depends on its method, seed, model and data only. Jobs that have a record
are not run again, so an interrupted bench can be continued with any executor.
"""

import functools
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from resitta.bench.loop import Progress
from resitta.bench.record import Records, read_json
from resitta.bench.runner import Bench, BenchSpec, Job
from resitta.errors import BadData, BadSetting, WorkerLost
from resitta.settings import check_settings, setting

Results = Iterator[tuple[Job, Any]]
"""Jobs in the order in which they finish, each with the content of its record."""


class DoubtfulRuns(UserWarning):
    """The network has random weights, so its errors say nothing about the methods."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Where runs execute.

    `workers`: how many at a time; None means one per core. `address`: a running Ray cluster; None starts one here.
    `threads`: of each run on the CPU; None means one.
    """

    name: Literal["local", "processes", "ray"] = "local"
    workers: int | None = setting(None, at_least=1)
    address: str | None = None
    threads: int | None = setting(None, at_least=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def results(self, spec: BenchSpec, jobs: Sequence[Job], *, rerun: bool = False) -> Results:
        """Run jobs in other processes."""
        if self.name == "processes":
            return on_processes(spec, jobs, self.workers, threads=self.threads or 1, rerun=rerun)
        from resitta.distributed.ray_jobs import on_ray  # noqa: PLC0415  (needs the extra `dist`)

        return on_ray(spec, jobs, self.workers, self.address, threads=self.threads or 1, rerun=rerun)


def run_jobs(
    spec: BenchSpec,
    jobs: Sequence[Job],
    bar: Callable[[str], Progress] | None = None,
    executor: Executor | None = None,
    *,
    rerun: bool = False,
) -> Records:
    """Return the records of all jobs, in order; jobs that have a record are not run again.

    `bar` makes a progress bar of a title. Without an `executor` the jobs run in this process. `rerun` runs finished
    jobs too and replaces their records.
    """
    make_bar = bar or (lambda _: lambda _done, _total: None)
    bench = spec.open(make_bar("opening the data"))
    if bench.warning:
        warnings.warn(bench.warning, DoubtfulRuns, stacklevel=3)
    complete = functools.cache(lambda method: bench.with_source(method, make_bar))  # once for all seeds
    jobs = list(dict.fromkeys(replace(job, method=complete(job.method)) for job in jobs))
    kept = tuple(not rerun and bench.finished(job) for job in jobs)
    missing = [job for job, old in zip(jobs, kept, strict=True) if not old]
    runs = {job: bench.record(job) for job, old in zip(jobs, kept, strict=True) if old}
    if executor is None or executor.name == "local" or not missing:
        runs |= {job: bench.record(job, make_bar(job.title), rerun=rerun) for job in missing}
    else:
        progress = make_bar(f"{len(missing)} runs")
        progress(0, len(missing))
        for done, (job, content) in enumerate(executor.results(spec, missing, rerun=rerun), start=1):
            runs[job] = bench.keep(job, content)
            progress(done, len(missing))
    return Records(tuple(runs[job] for job in jobs), tuple(job.label for job in jobs), kept, bench.warning)


def on_processes(
    spec: BenchSpec, jobs: Sequence[Job], workers: int | None = None, *, threads: int = 1, rerun: bool = False
) -> Results:
    """Run jobs in a pool of processes on this machine."""
    spawn = multiprocessing.get_context("spawn")  # a forked child could not use CUDA
    count = min(len(jobs), workers or max(1, (os.cpu_count() or 1) // threads))
    parcel, pickled = packed(spec), {job: packed(job) for job in jobs}
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=end_at_ctrl_c) as pool:
        futures = {pool.submit(work, parcel, content, threads, rerun): job for job, content in pickled.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            advice = "use fewer workers and repeat the command: finished runs are kept"
            raise WorkerLost(f"a worker process died, perhaps out of memory; {advice}") from error
        finally:
            pool.shutdown(cancel_futures=True)


def packed(thing: BenchSpec | Job, dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Pickle what a worker needs; the error names what cannot be pickled."""
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


def work(spec: bytes, job: bytes, threads: int, rerun: bool) -> Any:
    """Run a pickled job in a worker and return the content of its record."""
    return measure(spec, pickle.loads(job), threads=threads, rerun=rerun)


def measure(spec: BenchSpec | bytes, job: Job, *, threads: int = 1, rerun: bool = False) -> Any:
    """Run a job, unless it is finished, and return the content of its record.

    A pickled spec is opened once per worker.
    """
    bench = opened(spec, threads)
    bench.record(job, rerun=rerun)
    return read_json(bench.path(job))


@functools.lru_cache(maxsize=1)
def opened(spec: BenchSpec | bytes, threads: int) -> Bench:
    """Open the bench once per worker."""
    known: BenchSpec = pickle.loads(spec) if isinstance(spec, bytes) else spec
    enter(known.folder)
    if known.device == "cpu":
        torch.set_num_threads(threads)  # by default there is a worker for every core
    return known.open()


def enter(folder: Path) -> None:
    """Change to the folder in which the command was given, so that relative paths mean the same in a worker."""
    if not folder.is_dir():
        raise BadData(f"{folder} does not exist on this machine; put it and the data on a shared file system")
    os.chdir(folder)


def end_at_ctrl_c() -> None:
    """Let Ctrl-C end a worker at once: a pool would begin the next run first, and records are written atomically."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
