"""A sweep on a Ray cluster of two workers, one of which is killed in the middle."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tools import OWN_METHOD

import resitta.bench
from resitta.bench.executors import Executor, run_jobs
from resitta.bench.loop import Progress
from resitta.bench.record import RunRecord
from resitta.bench.runner import BenchSpec, Job
from resitta.conformance import tiny_network
from resitta.data.datasets import ArrayImages
from resitta.errors import BadData
from resitta.report.formats import as_text
from resitta.report.table import error_table

ray = pytest.importorskip("ray")


def no_bar(title: str) -> Progress:
    return lambda done, total: None


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without cores, so that all work is done by workers of one core each."""
    utils = pytest.importorskip("ray.cluster_utils")
    started = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(
    sweep: BenchSpec, jobs: list[Job], cluster: Any, measured: Callable[[Sequence[RunRecord]], list[dict[str, object]]]
) -> None:
    expected = run_jobs(replace(sweep, out=Path("local")), jobs, no_bar)
    workers = [cluster.add_node(num_cpus=1) for _ in range(2)]
    finished: dict[Path, int] = {}

    def kill() -> None:
        while len(list(Path("out").glob("*.json"))) < 3:
            time.sleep(0.05)
        finished.update({path: path.stat().st_mtime_ns for path in Path("out").glob("*.json")})
        cluster.remove_node(workers[0], allow_graceful=False)

    murderer = threading.Thread(target=kill)
    murderer.start()
    found = run_jobs(sweep, jobs, no_bar, Executor(name="ray", address=cluster.address))
    murderer.join()
    assert 3 <= len(finished) < 12, "killed in the middle"
    assert measured(found) == measured(expected)
    assert as_text(error_table(found)) == as_text(error_table(expected))
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in finished.items()), "nothing finished was run again"


@pytest.mark.slow
def test_trouble_in_a_worker_arrives_as_itself(sweep: BenchSpec, jobs: list[Job], cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    sweep = replace(sweep, folder=Path("/nowhere"))
    with pytest.raises(BadData, match="^/nowhere does not exist on this machine"):
        run_jobs(sweep, jobs[:1], no_bar, Executor(name="ray", address=cluster.address))


@pytest.mark.slow
def test_methods_and_models_of_ones_own(sweep: BenchSpec, cluster: Any) -> None:
    Path("own.py").write_text(OWN_METHOD.replace("FACTOR", "-1"))
    cluster.add_node(num_cpus=1)
    images = ArrayImages(np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8), np.arange(40) % 5)
    given: dict[str, Any] = {"methods": ["own.py:mine", "source"], "corruptions": ["fog"]}
    expected = resitta.bench.run(tiny_network(), images, **given)
    found = resitta.bench.run(tiny_network(), images, **given, engine="ray", address=cluster.address)
    assert [run.nll for run in found] == [run.nll for run in expected]
    assert [run.identity for run in found] == [run.identity for run in expected]
