from pathlib import Path

import pytest
import torch
from tests.serve.helpers import images
from torch import nn

import resitta
from resitta.errors import BadState
from resitta.serve.storage import StateFolder, load, save


@pytest.mark.parametrize("method", resitta.list_methods())
def test_a_loaded_adapter_goes_on_exactly_where_the_saved_one_stopped(
    method: str, model: nn.Module, tmp_path: Path
) -> None:
    first = resitta.adapt(model, method)
    for seed in range(5):
        first(images(30, seed))
    save(first, tmp_path / "file.safetensors")
    second = resitta.adapt(model, method)
    load(second, tmp_path / "file.safetensors")
    for seed in range(5, 8):
        assert torch.equal(first(images(30, seed)), second(images(30, seed)))
    assert first.stats == second.stats


def test_damaged_files_are_refused_and_change_nothing(model: nn.Module, tmp_path: Path) -> None:
    adapter, path = resitta.adapt(model, "resitta"), tmp_path / "file.safetensors"
    adapter(images(70))
    save(adapter, path)
    raw, before = path.read_bytes(), adapter.stats
    for damaged in (b"", raw[:100], raw[: len(raw) // 2], b"x" * 1000, raw.replace(b'\\"pairs', b'\\"pears')):
        path.write_bytes(damaged)
        with pytest.raises(BadState):
            load(adapter, path)
    assert adapter.stats == before


def test_a_state_of_another_method_is_refused(model: nn.Module, tmp_path: Path) -> None:
    save(resitta.adapt(model, "rotta"), tmp_path / "file.safetensors")
    with pytest.raises(BadState, match="does not fit"):
        load(resitta.adapt(model, "resitta"), tmp_path / "file.safetensors")


def test_only_the_newest_snapshots_are_kept(model: nn.Module, tmp_path: Path) -> None:
    folder, adapter = StateFolder(tmp_path / "deep" / "down", keep=2), resitta.adapt(model, "source")
    for version in (1, 5, 30, 200):
        folder.save(adapter, version)
    assert folder.versions() == [30, 200]
    assert len(list(folder.path.iterdir())) == 2


def test_recovery_passes_over_a_damaged_snapshot_and_clears_leftovers(model: nn.Module, tmp_path: Path) -> None:
    folder, adapter = StateFolder(tmp_path, keep=5), resitta.adapt(model, "resitta")
    adapter(images(9))
    folder.save(adapter, 1)
    folder._file(2).write_bytes(b"damaged")
    (tmp_path / "state-000000000003.77.tmp").write_bytes(b"half")
    fresh = resitta.adapt(model, "resitta")
    assert folder.recover(fresh) == 2  # the number is not used again
    assert fresh.samples == 9
    assert not list(tmp_path.glob("*.tmp"))


def test_recovery_without_any_good_snapshot_is_refused(model: nn.Module, tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, keep=5)
    folder._file(2).write_bytes(b"damaged")
    with pytest.raises(BadState):
        folder.recover(resitta.adapt(model, "resitta"))
