import time
from pathlib import Path

import pytest
import torch
from tests.serve.helpers import images
from torch import nn

import resitta
from resitta.errors import BadState
from resitta.serve.storage import StateFolder


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(model: nn.Module, tmp_path: Path) -> None:
    folder, adapter = StateFolder(tmp_path, keep=5), resitta.adapt(model, "resitta")
    adapter(images(70))
    before = adapter.stats
    folder.save(resitta.adapt(model, "rotta"), 1)
    with pytest.raises(BadState, match="saved with method 'rotta'"):
        folder.load_first(adapter, [1])
    assert adapter.stats == before


def test_a_folder_can_be_recovered_without_the_service(model: nn.Module, tmp_path: Path) -> None:
    adapter = resitta.adapt(model, "resitta")
    adapter(images(70))
    StateFolder(tmp_path, keep=5).save(adapter, 7)
    other = resitta.recover(model, tmp_path)
    assert other.stats == adapter.stats
    assert torch.equal(other(images(30, 1)), adapter(images(30, 1)))


def test_only_the_newest_snapshots_are_kept(model: nn.Module, tmp_path: Path) -> None:
    folder, adapter = StateFolder(tmp_path / "deep" / "down", keep=2), resitta.adapt(model, "source")
    for version in (1, 5, 30, 200):
        folder.save(adapter, version)
    assert folder.versions() == [30, 200]
    assert list(folder.times()) == [30, 200]
    assert all(0 <= time.time() - written < 60 for written in folder.times().values())
    assert len(list(folder.path.iterdir())) == 2


def test_recovery_passes_over_a_damaged_snapshot_and_clears_leftovers(
    model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, adapter = StateFolder(tmp_path, keep=5), resitta.adapt(model, "resitta")
    adapter(images(9))
    folder.save(adapter, 1)
    folder._file(2).write_bytes(b"damaged")
    (tmp_path / "state-0000000003.safetensors.77.tmp").write_bytes(b"half")
    fresh = resitta.adapt(model, "resitta")
    skipped = folder.recover(fresh)
    assert list(skipped) == [2]
    assert "state-0000000002.safetensors is not a safetensors file" in skipped[2]
    assert "state-0000000002.safetensors" in caplog.text
    assert fresh.samples == 9
    assert not list(tmp_path.glob("*.tmp"))


def test_recovery_without_any_good_snapshot_is_refused(model: nn.Module, tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, keep=5)
    folder._file(2).write_bytes(b"damaged")
    with pytest.raises(BadState):
        folder.recover(resitta.adapt(model, "resitta"))
