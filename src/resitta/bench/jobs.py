"""Run the jobs of a recipe, here or elsewhere; what has a record already is not run again."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from resitta.bench.loop import Progress
from resitta.bench.records import Records
from resitta.bench.runner import Job
from resitta.bench.spec import Recipe

Results = Iterator[tuple[Job, Any]]
"""Jobs in the order in which they finish, each with the content of its record."""


class Place(Protocol):
    """Where jobs run: `resitta.distributed.executors.Executor`."""

    @property
    def name(self) -> str:
        """The name of the engine; "local" stands for this process."""

    def results(self, recipe: Recipe, jobs: Sequence[Job], *, rerun: bool) -> Results:
        """Run all jobs in other processes."""


class DoubtfulRuns(UserWarning):
    """The runs can be made, but their numbers say little: the weights of the network are random."""


def run_jobs(
    recipe: Recipe,
    jobs: Sequence[Job],
    bar: Callable[[str], Progress] | None = None,
    engine: Place | None = None,
    *,
    rerun: bool = False,
) -> Records:
    """Return the records of all jobs, in order.

    `bar` makes a progress bar of a title. `engine` is where to run; None means in this process. `rerun` runs finished
    jobs too and replaces their records.
    """
    make_bar = bar or (lambda _: lambda _done, _total: None)
    bench = recipe.open(make_bar("opening the data"))
    if bench.warning:
        warnings.warn(bench.warning, DoubtfulRuns, stacklevel=3)
    jobs = list(dict.fromkeys(jobs))
    kept = tuple(not rerun and bench.finished(job) for job in jobs)
    missing = [job for job, old in zip(jobs, kept, strict=True) if not old]
    runs = {job: bench.record(job) for job, old in zip(jobs, kept, strict=True) if old}
    if engine is None or engine.name == "local" or not missing:
        runs |= {job: bench.record(job, make_bar(job.title), rerun=rerun) for job in missing}
    else:
        progress = make_bar(f"{len(missing)} runs")
        progress(0, len(missing))
        for done, (job, content) in enumerate(engine.results(recipe, missing, rerun=rerun), start=1):
            runs[job] = bench.keep(job, content)
            progress(done, len(missing))
    return Records(tuple(runs[job] for job in jobs), tuple(job.label for job in jobs), kept, bench.warning)
