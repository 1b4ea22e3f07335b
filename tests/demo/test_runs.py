from pathlib import Path

import numpy as np
import pytest
import torch

from resitta import adapt
from resitta.bench.loop import Progress
from resitta.bench.runner import BenchSpec, Job
from resitta.demo.photographs import PHOTOGRAPHS
from resitta.demo.runs import Predictions, Run, run_in_processes, run_one, title
from resitta.method import create
from resitta.report.timeline import Timeline


def quiet(_title: str) -> Progress:
    return lambda done, total: None


def spec_in(folder: Path) -> BenchSpec:
    return PHOTOGRAPHS.open(folder, samples=40, seed=1, retrain=False, bar=quiet)


JOBS = [Job(method=create("bn"), seed=1), Job(method=create("source", label_prior="temporal"), seed=1)]


def in_this_process(folder: Path) -> list[Run]:
    torch.set_num_threads(1)
    bench = spec_in(folder).open()
    return [run_one(bench, job, PHOTOGRAPHS.classes, lambda done, total: None) for job in JOBS]


def test_a_run_leaves_its_record_and_what_the_prior_changed(tmp_path: Path) -> None:
    bn, source = in_this_process(tmp_path)
    assert bn.timeline is None
    assert source.timeline is not None
    assert len(source.timeline.labels) == source.record.samples == 600
    before, after = source.timeline.errors
    assert after == pytest.approx(source.record.average, abs=1e-9), "what is returned counts"
    assert after != before
    assert {path.name.split("-")[0] for path in tmp_path.glob("*.json")} == {"source", "bn"}
    assert source.record.identity["model"] == "wrn16x1"


def test_predictions_are_those_before_and_after_the_prior(tmp_path: Path) -> None:
    bench = spec_in(tmp_path).open()
    stream = bench.protocol.stream(bench.sets, 1)
    plain, corrected = adapt(bench.model, "source"), adapt(bench.model, "source", label_prior="temporal")
    predictions, labels, expected, returned = Predictions(corrected), [], [], []
    for batch in stream.batches(64):
        labels.append(batch.labels)
        expected.append(plain(batch.images).argmax(1).numpy())
        returned.append(corrected(batch.images).argmax(1).numpy())
    found = predictions.timeline(stream)
    assert isinstance(found, Timeline)
    assert np.array_equal(found.labels, np.concatenate(labels))
    assert np.array_equal(found.plain, np.concatenate(expected))
    assert np.array_equal(found.corrected, np.concatenate(returned))
    assert [span.name for span in found.spans][:2] == ["motion", "snow"]


@pytest.mark.slow
def test_processes_give_the_same_runs(tmp_path: Path) -> None:
    here = in_this_process(tmp_path / "here")
    spec = spec_in(tmp_path / "there")
    spec.open()
    seen: dict[str, list[tuple[int, int]]] = {}

    def bar(name: str) -> Progress:
        return lambda done, total: seen.setdefault(name, []).append((done, total))

    there = run_in_processes(spec, JOBS, PHOTOGRAPHS.classes, 2, bar)
    assert [run.record.errors for run in here] == [run.record.errors for run in there]
    assert np.array_equal(here[1].timeline.plain, there[1].timeline.plain)  # type: ignore[union-attr]
    assert {name: steps[-1] for name, steps in seen.items()} == {title(job): (600, 600) for job in JOBS}
