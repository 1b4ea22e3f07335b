import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from resitta.bench.jobs import DoubtfulRuns, run_jobs
from resitta.bench.protocol import Protocol
from resitta.bench.runner import Job
from resitta.bench.spec import Recipe
from resitta.data.datasets import ArrayImages
from resitta.method import create

SOURCE, TENT = Job(method=create("source"), seed=1), Job(method=create("tent"), seed=1)


@pytest.fixture
def recipe(model: nn.Module, tmp_path: Path) -> Recipe:
    rng = np.random.default_rng(0)
    images = ArrayImages(rng.integers(0, 256, (30, 10, 10, 3), np.uint8), np.arange(30) % 5)
    return Recipe(protocol=Protocol(corruptions=("clean",)), model=model, data=images, out=tmp_path / "out")


def test_what_is_finished_is_kept_and_says_so(recipe: Recipe) -> None:
    first = run_jobs(recipe, [SOURCE])
    both = run_jobs(recipe, [SOURCE, TENT])
    assert (first.kept, both.kept) == ((False,), (True, False))
    assert both[0] == first[0]
    assert both[0].made == first[0].made != ""
    assert run_jobs(recipe, [SOURCE, TENT], rerun=True).kept == (False, False)
    assert len(list(recipe.out.glob("*.json"))) == 2


def test_a_job_asked_for_twice_is_one_run(recipe: Recipe) -> None:
    assert len(run_jobs(recipe, [SOURCE, SOURCE])) == 1, "else it would count as two seeds"


def test_bars_are_made_for_what_is_run(recipe: Recipe) -> None:
    titles: list[str] = []

    def bar(title: str) -> Any:
        titles.append(title)
        return lambda done, total: None

    run_jobs(recipe, [SOURCE], bar)
    run_jobs(recipe, [SOURCE, TENT], bar)
    assert titles == ["opening the data", "source, seed 1", "opening the data", "tent, seed 1"]


def test_random_weights_are_warned_of_before_the_runs(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    images = ArrayImages(np.zeros((10, 32, 32, 3), np.uint8), np.arange(10))
    untrained = replace(recipe, model="wrn16x1", data=images)
    with pytest.warns(DoubtfulRuns, match="wrn16x1 has random weights; give it a checkpoint"):
        records = run_jobs(untrained, [SOURCE])
    assert "random weights" in records.warning
    assert records[0].identity["untrained"] is True
    monkeypatch.setattr("resitta.bench.runner.run_stream", lambda *_, **__: pytest.fail("ran before the warning"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtfulRuns)
        with pytest.raises(DoubtfulRuns):
            run_jobs(untrained, [SOURCE], rerun=True)
