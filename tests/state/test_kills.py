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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_processes_go_on_where_they_stopped(kills: ModuleType) -> None:
    torch.set_num_threads(1)  # a forked process hangs in OpenMP once its parent has computed in several threads
    summary = kills.run(kills=8, seed=1, longest=0.4)
    assert summary.kills == 8
    assert summary.recovered + summary.before_the_first_save == 8
    assert summary.files_unreadable == summary.predictions_different == 0
    assert summary.predictions_compared > 8
