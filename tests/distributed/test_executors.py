"""The process pool leaves the records that the local engine leaves."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools import OWN_METHOD

from resitta.bench.jobs import run_jobs
from resitta.bench.loop import Progress
from resitta.bench.record import RunRecord
from resitta.bench.runner import Job
from resitta.bench.spec import Recipe
from resitta.distributed.executors import Executor, measure
from resitta.errors import BadData, BadSetting, WorkerLost
from resitta.registry import create
from resitta.user_code import load_method

Measured = Callable[[Sequence[RunRecord]], list[dict[str, object]]]


def no_bar(title: str) -> Progress:
    return lambda done, total: None


@pytest.mark.usefixtures("one_thread")
def test_processes_leave_the_same_records(recipe: Recipe, jobs: list[Job], measured: Measured) -> None:
    some = jobs[::3]
    expected = run_jobs(replace(recipe, out=Path("local")), some, no_bar)
    seen: list[tuple[int, int]] = []
    found = run_jobs(
        recipe, some, lambda _: lambda done, total: seen.append((done, total)), Executor(name="processes", workers=2)
    )
    assert measured(found) == measured(expected)
    assert seen[-5:] == [(done, 4) for done in range(5)]
    assert {path.name for path in Path("out").glob("*.json")} == {path.name for path in Path("local").glob("*.json")}


def test_finished_runs_start_no_process(recipe: Recipe, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    some = jobs[:2]
    first = run_jobs(recipe, some, no_bar)
    monkeypatch.setattr(Executor, "results", lambda *_, **__: pytest.fail("ran again"))
    assert run_jobs(recipe, some, no_bar, Executor(name="processes")) == first


def test_a_record_from_another_disk_is_written_here(
    recipe: Recipe, jobs: list[Job], measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = some = jobs[:1]
    elsewhere = measure(replace(recipe, out=Path("elsewhere")), job)
    monkeypatch.setattr(Executor, "results", lambda *_, **__: iter([(job, elsewhere)]))
    (found,) = run_jobs(recipe, some, no_bar, Executor(name="ray"))
    assert measured([found]) == measured(run_jobs(replace(recipe, out=Path("local")), some, no_bar))


class Deadly(Job):
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (9,)


def test_a_worker_that_dies_is_named(recipe: Recipe) -> None:
    engine = Executor(name="processes", workers=1)
    with pytest.raises(WorkerLost, match="a worker process died, perhaps for want of memory; use fewer workers"):
        run_jobs(recipe, [Deadly(method=create("source"), seed=1)], no_bar, engine)


def test_a_folder_that_is_not_shared_is_named(recipe: Recipe, jobs: list[Job]) -> None:
    with pytest.raises(BadData, match="/nowhere does not exist on this machine; put it and the data on a shared"):
        measure(replace(recipe, folder=Path("/nowhere")), jobs[0])


@pytest.mark.parametrize(("options", "words"), [({"name": "dask"}, "name must be one of"), ({"workers": 0}, ">= 1")])
def test_wrong_engines_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(BadSetting, match=words):
        Executor(**options)  # type: ignore[arg-type]


def test_a_method_of_a_users_file_runs_in_processes(recipe: Recipe, measured: Measured) -> None:
    Path("own.py").write_text(OWN_METHOD.replace("FACTOR", "-1"))
    jobs = [Job(method=create(load_method("own.py:mine")), seed=seed) for seed in (1, 2)]
    expected = run_jobs(replace(recipe, out=Path("local")), jobs)
    found = run_jobs(recipe, jobs, engine=Executor(name="processes", workers=1))
    assert measured(found) == measured(expected)
    again = run_jobs(recipe, jobs, engine=Executor(name="processes", workers=1), rerun=True)
    assert measured(again) == measured(expected)
    assert again.kept == (False, False)


def test_a_worker_runs_again_only_what_it_is_told_to(recipe: Recipe, jobs: list[Job]) -> None:
    path = recipe.open().path(jobs[0])
    measure(recipe, jobs[0])
    stamp = path.stat().st_mtime_ns
    measure(recipe, jobs[0])
    assert path.stat().st_mtime_ns == stamp
    measure(recipe, jobs[0], rerun=True)
    assert path.stat().st_mtime_ns > stamp


def test_a_model_that_differs_in_the_worker_is_refused(recipe: Recipe, jobs: list[Job]) -> None:
    Path("mine.py").write_text(
        "import os, torch\nfrom resitta.conformance import tiny_network\ndef make():\n"
        "    torch.manual_seed(os.getpid())\n    net = tiny_network(classes=4)\n"
        "    torch.nn.init.normal_(net[0].weight)\n    return net"
    )
    with pytest.raises(BadData, match="source, seed 1 is not the run that was asked for: its weights was not the same"):
        run_jobs(recipe, jobs[:1], engine=Executor(name="processes", workers=1))
