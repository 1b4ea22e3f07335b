"""Source data of adapters, with a method that subtracts the mean of its logits on source images."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tools import NEEDS_SOURCE
from torch import Tensor, nn

import resitta
from resitta.checkpoint.format import seal
from resitta.errors import BadSetting, BadState, UnknownName
from resitta.method import get_method
from resitta.models.user_code import load_file

Images = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def centred(tmp_path: Path) -> Any:
    (tmp_path / "own.py").write_text(NEEDS_SOURCE)
    load_file(tmp_path / "own.py")
    return get_method("centred")


def expected(model: nn.Module, source: Tensor, batch: Tensor) -> Tensor:
    with torch.no_grad():
        centred: Tensor = model(batch) - model(source).mean(0)
        return centred


def test_images_become_statistics_when_an_adapter_is_made(model: nn.Module, images: Images) -> None:
    source, batch = images(100), images(8, seed=1)
    adapter = resitta.adapt(model, "centred", source=source)
    torch.testing.assert_close(adapter(batch), expected(model, source, batch))
    loader = [(source[:50], None), (source[50:], None)]
    torch.testing.assert_close(resitta.adapt(model, "centred", source=loader)(batch), adapter(batch))
    assert "source=<statistics of 100 source images for centred, " in repr(adapter)
    adapter.reset()
    torch.testing.assert_close(adapter(batch), expected(model, source, batch))


def test_a_file_serves_instead_of_images(model: nn.Module, images: Images, tmp_path: Path) -> None:
    source, batch, path = images(100), images(8, seed=1), tmp_path / "centred.safetensors"
    seen: list[tuple[int, int]] = []
    made = resitta.prepare(model, source, "centred", path=path, progress=lambda *done: seen.append(done))
    assert seen == [(64, 100), (100, 100)]
    for given in (path, str(path), made):
        adapter = resitta.adapt(model, "centred", source=given)
        assert adapter.method.source == made  # type: ignore[attr-defined]
        torch.testing.assert_close(adapter(batch), expected(model, source, batch))


def test_they_fit_the_model_in_another_precision(model: nn.Module, images: Images, tmp_path: Path) -> None:
    resitta.prepare(model, images(100), "centred", path=tmp_path / "file")
    for dtype in (torch.float64, torch.bfloat16):
        resitta.adapt(copy.deepcopy(model).to(dtype), "centred", source=tmp_path / "file")


def test_a_file_of_another_model_or_method_is_refused(model: nn.Module, images: Images, tmp_path: Path) -> None:
    path, other = tmp_path / "file", copy.deepcopy(model)
    next(other.parameters()).data[0, 0, 0, 0] += 1
    made = resitta.prepare(other, images(10), "centred", path=path)
    for given in (path, made):
        with pytest.raises(BadSetting, match="another model or of other weights; make them with `resitta prepare"):
            resitta.adapt(model, "centred", source=given)
    load_file(_renamed(tmp_path))
    with pytest.raises(BadSetting, match="source holds statistics for centred, centred-2 needs its own"):
        resitta.adapt(other, "centred-2", source=path)


def _renamed(folder: Path) -> Path:
    (folder / "other.py").write_text(NEEDS_SOURCE.replace('"centred"', '"centred-2"'))
    return folder / "other.py"


def test_without_source_data_the_error_names_a_method_that_needs_none(model: nn.Module) -> None:
    said = "centred needs data of the source domain: pass source=, .*resitta prepare.* 'source' works without"
    with pytest.raises(BadSetting, match=said):
        resitta.adapt(model, "centred")


def test_methods_that_need_none_take_none(model: nn.Module, images: Images) -> None:
    with pytest.raises(UnknownName, match="tent has no setting 'source'"):
        resitta.adapt(model, "tent", source=images(3))
    with pytest.raises(BadSetting, match="tent needs no source data"):
        resitta.prepare(model, images(3), "tent")


def test_saved_adapters_bring_their_statistics(model: nn.Module, images: Images, tmp_path: Path) -> None:
    source, batch, path = images(100), images(8, seed=1), tmp_path / "state"
    adapter = resitta.adapt(model, "centred", source=source)
    adapter.save(path)
    loaded = resitta.load(model, path)
    assert torch.equal(loaded(batch), adapter(batch))
    assert loaded.method == adapter.method
    adapter.restore(path)
    with pytest.raises(
        BadState, match="was saved with source <statistics of 100 .*, this adapter has <statistics of 50"
    ):
        resitta.adapt(model, "centred", source=source[:50]).restore(path)


def test_converted_adapters_can_be_loaded(model: nn.Module, images: Images, tmp_path: Path) -> None:
    adapter = resitta.adapt(copy.deepcopy(model), "centred", source=images(100)).half()
    adapter.save(tmp_path / "state")
    resitta.load(model.half(), tmp_path / "state").save(tmp_path / "again")


def test_copies_and_pickles_keep_them(model: nn.Module, images: Images) -> None:
    adapter, batch = resitta.adapt(model, "centred", source=[images(10)]), images(8, seed=1)
    for twin in (copy.deepcopy(adapter), adapter.double() and copy.deepcopy(adapter).float()):
        torch.testing.assert_close(twin(batch), expected(copy.deepcopy(model).float(), images(10), batch))


def test_methods_with_statistics_travel_to_other_processes(model: nn.Module, images: Images) -> None:
    method = resitta.create("centred", source=resitta.prepare(model, images(10), "centred"))
    assert pickle.loads(pickle.dumps(vars(method))) == vars(method)


def test_methods_with_images_are_equal_to_themselves(images: Images) -> None:
    one, other = (resitta.create("centred", source=images(4)) for _ in range(2))
    assert resitta.create(one, scale=1.0) == one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"format": 1}, "holds no statistics of source data; make them with"),
        ({"format": 2, "source_statistics": "centred"}, "has format 2, this version reads 1"),
        ({"format": 1, "source_statistics": "centred"}, "that can be read; make them again"),
        ({"format": 1, "source_statistics": "x", "images": 1, "tensors": {"a": torch.tensor(torch.nan)}}, "not finite"),
    ],
)
def test_files_made_by_hand_are_refused(document: Any, message: str, model: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(seal(document))
    with pytest.raises(BadState, match=message):
        resitta.adapt(model, "centred", source=tmp_path / "file")


def test_the_suite_gives_source_images_to_methods_that_need_some() -> None:
    assert "all_state_is_saved" in resitta.check_method("centred")
