"""A small edition of benchmarks/kills.py."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    spec = importlib.util.spec_from_file_location("kills", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kills", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_processes_go_on_where_they_stopped(kills: ModuleType) -> None:
    torch.set_num_threads(1)  # a forked process hangs in OpenMP once its parent has computed in several threads
    summary = kills.run(kills=8, seed=1, longest=0.4)
    assert summary.kills == 8
    assert summary.recovered + summary.before_the_first_save == 8
    assert summary.files_unreadable == summary.predictions_different == 0
    assert summary.predictions_with_a_guard > 8
    assert summary.found_by_guards > 50


def test_the_guarded_streams_have_everything_that_can_go_wrong(kills: ModuleType) -> None:
    for stream, (_, settings) in enumerate(kills.STREAMS):
        if "guard" not in settings:
            continue
        adapter = kills.new_adapter(kills.tiny_network(), stream)
        for position in range(kills.BATCHES):
            assert kills.position_of(adapter, stream) in (position, position - 1)  # a batch of NaN leaves no trace
            adapter(kills.images(stream, position))
        unknown = adapter.guard.counts["unknown"]
        assert adapter.guard.counts.total() > unknown + 5, "something was rolled back"
        assert unknown > 80
