"""Curves for TensorBoard, read back with its own reader."""

import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import stream
from torch import nn

from resitta import adapt
from resitta.errors import MissingExtra
from resitta.monitor.events import GuardFired, TensorBoard


def test_curves_are_written(model: nn.Module, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board, adapter = TensorBoard(tmp_path), adapt(model, "resitta")
    adapter.listen(board)
    for batch in torch.split(stream(128), 64):
        adapter(batch)
    adapter.emit(GuardFired(samples=128, reason="drift", value=2.0, bound=1.0, action="warn"))
    adapter.reset()
    board.close()
    written = reader.EventAccumulator(str(tmp_path)).Reload()
    assert [point.step for point in written.Scalars("resitta/turnover")] == [64, 128]
    assert written.Scalars("resitta/guard/drift")[0].value == 2.0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[tensorboard\]"):
        TensorBoard(tmp_path)
